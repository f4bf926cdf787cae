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

// Defines what each simulated vendor knows about a person. For magic NPIs, this is listed in
// magic-npis.json. For all other NPIs, it is derived from the digits.

/** The person that a vendor returns when it confuses two people. */
export const STRANGER: SimPerson = {
  ...personOf('2000000010'),
  first: 'Edda',
  last: 'Kowalczyk',
  workEmail: 'edda.kowalczyk@cedarvalleyclinic-sim.com',
};

/** A vendor's data about a person, independent of the format of its API. */
export type Finding = ReturnType<typeof findingOf>;

/** Returns a vendor's data about the person with an NPI. */
export function findingOf(vendor: VendorId, npi: string) {
  const known = knownOf(vendor, npi);
  const person = known === 'somebody_else' ? STRANGER : personOf(npi);
  const hasHomeEmail = known === 'personal' || known === 'both';
  return {
    /**
     * The subject of the request. It is the NPI, or the name if no person of the sample has that
     * name.
     */
    subject: npi,
    /** The person in the response. It may be `STRANGER`. */
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

/** Returns a vendor's data about the person with a given name and employer. */
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
 * Returns what a vendor knows about a person without a magic NPI. All vendors know the same, except
 * that Prospeo and Hunter have no personal addresses.
 */
function ordinarilyKnown(vendor: VendorId, npi: string): Known {
  const share = shareOf(npi);
  const hasPersonal = vendor === 'rocketreach' || vendor === 'fullenrich';
  if (share === 'personal' && !hasPersonal) return 'nobody';
  return share;
}

/**
 * What vendors know about people without a magic NPI. The percentages are cumulative, so the shares
 * are 20, 40, 15, 5, and 20 percent.
 */
const SHARES = [
  [20, 'both'],
  [60, 'found'],
  [75, 'personal'],
  [80, 'slow'],
  [100, 'nobody'],
] as const;

/**
 * Returns what vendors know about the person with an NPI, derived from its digits. 60 % of the
 * people have a professional address, and a third of these also have a personal address.
 */
export function shareOf(npi: string): (typeof SHARES)[number][1] {
  const percent = digestOf(npi).readUInt16BE(2) % 100;
  return SHARES.find(([below]) => percent < below)?.[1] ?? 'nobody';
}
