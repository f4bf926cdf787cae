import { createHash } from 'node:crypto';
import { shareOf } from './behaviours.ts';
import { type FinderId, MAGIC, type MagicFinding } from './magic.ts';
import { findPerson, personOf, type SimPerson } from './people.ts';

// What the simulated vendors that search by name and employer know about a person.

/** Whom a vendor is asked about. */
export interface Contact {
  readonly first: string;
  readonly last: string;
  readonly domain: string | null;
  readonly company: string | null;
}

/** What a vendor has of a person, before its own wire format. */
export interface Finding {
  /** Whose addresses these are, which need not be who was asked for. */
  readonly person: SimPerson;
  readonly workEmail: string | null;
  readonly homeEmail: string | null;
  readonly situation: Situation;
}

/**
 * What is special about an answer. Everything but `found` can be asked for on purpose: a contact with the last
 * name Simulator and a first name from this list, at any company, is treated that way by the vendors that
 * document such an answer, and simply found by the others.
 */
export const SITUATIONS = [
  'found',
  /** The vendor takes a while. */
  'slow',
  /** The first question meets the vendor's rate limit, the next one is answered. */
  'limited',
  /** Our account has no credits left. */
  'broke',
  'failing',
  'hanging',
  /** The person asked the vendor to stop processing. */
  'optedout',
  /** The address is shown with asterisks, until it is paid for. */
  'masked',
  'catchall',
  /** The vendor could not find out whether the mailbox exists. */
  'unknown',
  /** The vendor thinks so, without proof. */
  'probable',
  /** The mailbox does not exist. */
  'missing',
  'webmail',
  'disposable',
  'canceled',
] as const;
export type Situation = (typeof SITUATIONS)[number];

const MAGIC_LAST_NAME = 'simulator';
/** Whom a vendor takes others for. */
const STAND_IN = personOf('2000000010');

/** @returns null where the vendor knows nobody of that name there */
export function findingOf(vendor: FinderId, contact: Contact): Finding | null {
  const asked = onPurpose(contact);
  if (asked !== null) return asked;
  const person = findPerson(contact, contact);
  if (person === null) return null;
  const magic = MAGIC.get(person.npi);
  return magic ? magicFinding(person, magic.finders[vendor]) : ordinaryFinding(vendor, person);
}

/** The NPI behind a question, or the name where it is nobody's: for the log of calls. */
export function subjectOf(contact: Contact): string {
  return findPerson(contact, contact)?.npi ?? `${contact.first} ${contact.last}`;
}

function onPurpose({ first, last }: Contact): Finding | null {
  if (last.toLowerCase() !== MAGIC_LAST_NAME) return null;
  const situation = SITUATIONS.find((one) => one === first.toLowerCase());
  if (situation === undefined) return null;
  const workEmail = `${situation}.${MAGIC_LAST_NAME}@${STAND_IN.organization.domain}`;
  return finding({ ...STAND_IN, first, last }, { workEmail, situation });
}

function magicFinding(person: SimPerson, known: MagicFinding | undefined): Finding | null {
  switch (known) {
    case undefined:
      return null;
    case 'found':
      return finding(person, { workEmail: person.workEmail });
    case 'somebody_else':
      return finding(STAND_IN, { workEmail: STAND_IN.workEmail });
    case 'opted_out':
      return finding(person, { situation: 'optedout' });
  }
}

/** FullEnrich alone has personal addresses. Whom RocketReach does not know, one of the three knows, or nobody. */
function ordinaryFinding(vendor: FinderId, person: SimPerson): Finding | null {
  const { npi, workEmail, homeEmail } = person;
  const hasPersonal = vendor === 'fullenrich';
  switch (shareOf(npi)) {
    case 'both':
      return finding(person, hasPersonal ? { workEmail, homeEmail } : { workEmail });
    case 'professional':
      return finding(person, { workEmail });
    case 'personal':
      return hasPersonal ? finding(person, { homeEmail }) : null;
    case 'slow':
      return finding(person, { workEmail, situation: 'slow' });
    case 'other_vendor':
      return onlyVendorOf(npi) === vendor ? finding(person, { workEmail }) : null;
    case 'nobody':
      return null;
  }
}

function finding(person: SimPerson, known: Partial<Omit<Finding, 'person'>>): Finding {
  return { person, workEmail: null, homeEmail: null, situation: 'found', ...known };
}

const FINDERS: readonly [FinderId, ...FinderId[]] = ['fullenrich', 'prospeo', 'hunter'];

function onlyVendorOf(npi: string): FinderId {
  const byte = createHash('sha256').update(npi).digest().readUInt8(11);
  return FINDERS[byte % FINDERS.length] ?? FINDERS[0];
}
