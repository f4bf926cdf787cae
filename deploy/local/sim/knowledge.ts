import type { VendorId } from '../../../activities/vendors/catalogue.ts';
import { type Known, MAGIC } from './magic.ts';
import { type Contact, digestOf, directAddress, findPerson, personOf, type SimPerson } from './people.ts';

// What the simulated vendors know: of the magic NPIs what their table says, of all others what their digits say.

/** Whom a vendor takes others for: a stranger who has somebody's NPI. */
export const STRANGER: SimPerson = {
  ...personOf('2000000010'),
  first: 'Edda',
  last: 'Kowalczyk',
  workEmail: 'edda.kowalczyk@cedarvalleyclinic-sim.com',
};

/** What a vendor has of a person, before its own wire format. */
export type Finding = ReturnType<typeof findingOf>;

/** What a vendor has of the person of an NPI. */
export function findingOf(vendor: VendorId, npi: string) {
  const magic = MAGIC.get(npi);
  const known = magic ? (magic.knows[vendor] ?? 'nobody') : ordinarilyKnown(vendor, npi);
  const person = known === 'somebody_else' ? STRANGER : personOf(npi);
  const atWork = known === 'direct' ? directAddress(person) : person.workEmail;
  return {
    /** Who was asked about: the NPI, or the name if it is nobody's. */
    subject: npi,
    /** Whose addresses these are, be it a stranger. */
    person,
    workEmail: known === 'personal' || known === 'nobody' ? null : atWork,
    homeEmail: known === 'personal' || known === 'both' ? person.homeEmail : null,
    known,
  };
}

/** What a vendor has of a contact. */
export function search(vendor: VendorId, contact: Contact): Finding {
  const { first, last } = contact;
  const npi = findPerson(contact)?.npi;
  if (npi !== undefined) return findingOf(vendor, npi);
  const nothing = { workEmail: null, homeEmail: null, known: 'nobody' } as const;
  return { subject: `${first} ${last}`, person: { ...STRANGER, first, last }, ...nothing };
}

/** Everybody knows the same of people who are not magic, but Prospeo and Hunter have no personal addresses. */
function ordinarilyKnown(vendor: VendorId, npi: string): Known {
  const share = shareOf(npi);
  const hasPersonal = vendor === 'rocketreach' || vendor === 'fullenrich';
  return share === 'personal' && !hasPersonal ? 'nobody' : share;
}

/** What there is to find about providers who are not magic, 20, 40, 15, 5 and 20 in a hundred of them. */
const SHARES = [
  [20, 'both'],
  [60, 'found'],
  [75, 'personal'],
  [80, 'slow'],
  [100, 'nobody'],
] as const;

/** Drawn from the digits of an NPI: 60 % have a professional address, a third of them a personal one too. */
export function shareOf(npi: string): (typeof SHARES)[number][1] {
  const percent = digestOf(npi).readUInt16BE(2) % 100;
  return SHARES.find(([below]) => percent < below)?.[1] ?? 'nobody';
}
