import type { VendorId } from '../../../activities/vendors/catalogue.ts';
import { type Known, MAGIC } from './magic.ts';
import {
  type Contact,
  digestOf,
  directAddress,
  findPerson,
  personOf,
  type SimPerson,
} from './people.ts';

// The knowledge of the simulated vendors: for magic NPIs from their table, for all others from the
// digits.

/** The stranger that a vendor returns for another person's NPI. */
export const STRANGER: SimPerson = {
  ...personOf('2000000010'),
  first: 'Edda',
  last: 'Kowalczyk',
  workEmail: 'edda.kowalczyk@cedarvalleyclinic-sim.com',
};

/** A vendor's data about a person, before it is put into its wire format. */
export type Finding = ReturnType<typeof findingOf>;

/** Returns a vendor's data about the person of an NPI. */
export function findingOf(vendor: VendorId, npi: string) {
  const known = knownOf(vendor, npi);
  const person = known === 'somebody_else' ? STRANGER : personOf(npi);
  const hasHomeEmail = known === 'personal' || known === 'both';
  return {
    /** The subject of the request: the NPI, or the name if it matches no NPI. */
    subject: npi,
    /** The person with these addresses, possibly a stranger. */
    person,
    workEmail: workEmailOf(person, known),
    homeEmail: hasHomeEmail ? person.homeEmail : null,
    known,
  };
}

function knownOf(vendor: VendorId, npi: string): Known {
  const magic = MAGIC.get(npi);
  if (magic === undefined) return ordinarilyKnown(vendor, npi);
  return magic.knows[vendor] ?? 'nobody';
}

function workEmailOf(person: SimPerson, known: Known): string | null {
  switch (known) {
    case 'personal':
    case 'nobody':
      return null;
    case 'direct':
      return directAddress(person);
    default:
      return person.workEmail;
  }
}

/** Returns a vendor's data about a contact. */
export function search(vendor: VendorId, contact: Contact): Finding {
  const { first, last } = contact;
  const found = findPerson(contact);
  if (found) return findingOf(vendor, found.npi);
  return {
    subject: `${first} ${last}`,
    person: { ...STRANGER, first, last },
    workEmail: null,
    homeEmail: null,
    known: 'nobody',
  };
}

/**
 * Returns a vendor's knowledge about an ordinary person. The vendors know the same, except that
 * Prospeo and Hunter have no personal addresses.
 */
function ordinarilyKnown(vendor: VendorId, npi: string): Known {
  const share = shareOf(npi);
  const hasPersonal = vendor === 'rocketreach' || vendor === 'fullenrich';
  if (share === 'personal' && !hasPersonal) return 'nobody';
  return share;
}

/**
 * Kinds of knowledge about ordinary providers, with cumulative percentages: 20, 40, 15, 5 and 20
 * percent of them.
 */
const SHARES = [
  [20, 'both'],
  [60, 'found'],
  [75, 'personal'],
  [80, 'slow'],
  [100, 'nobody'],
] as const;

/**
 * Returns the share that an NPI's digits select. 60 % have a professional address, and a third of
 * these also a personal one.
 */
export function shareOf(npi: string): (typeof SHARES)[number][1] {
  const percent = digestOf(npi).readUInt16BE(2) % 100;
  return SHARES.find(([below]) => percent < below)?.[1] ?? 'nobody';
}
