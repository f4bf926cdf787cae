import { createHash } from 'node:crypto';
import { hasNpiCheckDigit } from '../../../activities/person/npi.ts';
import { MAGIC, MAGIC_ORGANIZATION_NPI } from './magic.ts';
// Invented names, states with an area code and the beginning of a ZIP code, and credentials with a
// taxonomy code.
import WORDS from './people.json' with { type: 'json' };

// The simulated world: invented providers at invented practices, with domains that are not
// registered and telephone numbers reserved for fiction (555-01XX). Their NPIs begin with 2, which
// is not being assigned.

/**
 * Names on doors. The suffix `.org` or `.net` is the ending of the domain. The default is `.com`.
 */
const PRACTICES = [
  ...WORDS.practices,
  ...WORDS.villages.flatMap((place) => [
    `${place} Health.org`,
    `${place} Internists & Associates`,
    `${place} Urgent Care.net`,
    `${place} Medical`,
  ]),
];
/** Free-mail domains of simulated personal addresses. */
export const FREE_MAIL_DOMAINS: readonly string[] = WORDS.freeMail;
/** A practice's host for Direct messaging. */
export const DIRECT_DOMAIN = 'direct.cedarvalleyclinic-sim.com';
/** The domain of a closed practice. It says that it accepts no mail. */
export const CLOSED_DOMAIN = 'closedpractice-sim.com';

const FIRST_ORGANIZATION_STEM = 250_000_000;
const FIRST_PERSON_STEM = 210_000_000;
const SAMPLE_SIZE = 500;

/** A practice as in NPPES. */
export type SimOrganization = (typeof SAMPLE_ORGANIZATIONS)[number];

/**
 * The practices of the sample. No two share a domain, an address or a telephone number. Every third
 * one uses another name than its legal one.
 */
export const SAMPLE_ORGANIZATIONS = PRACTICES.map((practice, index) => {
  const [door = '', ending = 'com'] = practice.split('.');
  const [state = '', area, zip] = pick(WORDS.places, index).split(' ');
  const twoDigits = String(index).padStart(2, '0');
  const isLast = index === PRACTICES.length - 1;
  const npi = isLast ? MAGIC_ORGANIZATION_NPI : withCheckDigit(FIRST_ORGANIZATION_STEM + index);
  const city = pick(WORDS.towns, index);
  const nameOnDoor = door.toUpperCase();
  const hasOtherName = index % 3 === 2;
  const legal = hasOtherName ? `${city} PROVIDERS ${index}` : nameOnDoor;
  const suite = index % 4 === 1 ? `STE ${200 + index}` : null;
  return {
    npi,
    /** The legal business name. */
    name: `${legal} ${pick(WORDS.legalForms, index)}`,
    /** The name on its door, or null if that is the legal name. */
    dba: hasOtherName ? nameOnDoor : null,
    domain: `${letters(door)}-sim.${ending}`,
    address: {
      line1: `${100 + index * 7} ${pick(WORDS.streets, index)}`,
      line2: suite,
      city,
      state,
      zip: `${zip}${twoDigits}`,
    },
    phone: `${area}55501${twoDigits}`,
  };
});

/** Domains of the simulated practices. Only the local name server knows them. */
export const PRACTICE_DOMAINS: readonly string[] = SAMPLE_ORGANIZATIONS.map(({ domain }) => domain);

/** A provider as NPPES and the simulated vendors know them. */
export type SimPerson = ReturnType<typeof personOf>;

/**
 * Returns the provider of an NPI, derived from its digits, so that an NPI is the same person in
 * every run.
 * @param npi 10 digits
 */
export function personOf(npi: string) {
  const digest = digestOf(npi);
  const byte = (index: number) => digest.readUInt8(index);
  // Spelled as people write it: `Mary Jo`, `O'Malley`.
  let first = pick(WORDS.firstNames, byte(4));
  let last = pick(WORDS.lastNames, byte(5));
  // The practice whose address and telephone the provider has.
  let organization = pick(SAMPLE_ORGANIZATIONS, byte(6));
  let freeMail = pick(FREE_MAIL_DOMAINS, byte(7));
  const magic = MAGIC.get(npi);
  if (magic) {
    [first = '', last = ''] = magic.name.split(' ');
    organization = organizationOf(magic.practice);
    freeMail = pick(FREE_MAIL_DOMAINS, 0);
  }
  const [credential = '', taxonomy = ''] = pick(WORDS.professions, byte(8)).split(' ');
  const middle = byte(9) % 3 === 0 ? pick(WORDS.firstNames, byte(10)) : null;
  const workEmail = `${letters(first)}.${letters(last)}@${organization.domain}`;
  // Has a form that is unlikely to exist.
  const homeEmail = `npi${npi}.sim@${freeMail}`;
  return { npi, first, last, middle, credential, taxonomy, organization, workEmail, homeEmail };
}

/** @param practice the name of its domain, without `-sim` and ending */
function organizationOf(practice: string): SimOrganization {
  const index = PRACTICE_DOMAINS.findIndex((domain) => domain.startsWith(`${practice}-sim.`));
  return pick(SAMPLE_ORGANIZATIONS, index);
}

/** Returns the bytes that all properties of an NPI are derived from. */
export function digestOf(npi: string): Buffer {
  return createHash('sha256').update(npi).digest();
}

/**
 * The individuals in the sample of NPPES, including every magic one. No two share a name and a
 * practice.
 */
export const SAMPLE_NPIS: readonly string[] = sampleNpis();

function sampleNpis(): string[] {
  const magic = [...MAGIC.keys()].filter((npi) => npi !== MAGIC_ORGANIZATION_NPI);
  const npis = new Map(magic.map((npi) => [personOf(npi).workEmail, npi]));
  for (let stem = FIRST_PERSON_STEM; npis.size < SAMPLE_SIZE; stem += 1) {
    const { npi, workEmail } = personOf(withCheckDigit(stem));
    if (!npis.has(workEmail)) npis.set(workEmail, npi);
  }
  return [...npis.values()];
}

const BY_NAME = Map.groupBy(SAMPLE_NPIS.map(personOf), nameKey);

/** The person in a request to a vendor that searches by name and employer. */
export interface Contact {
  readonly first: string;
  readonly last: string;
  /** At least one of the two is given. */
  readonly domain: string | null;
  readonly company: string | null;
}

/**
 * Finds a person of the sample. The name matches without spaces and marks. The employer matches by
 * its domain or, without a domain, by the beginning of one of its names (`Cedar Valley Clinic`
 * without `, P.L.L.C.`).
 * @returns null without a match
 */
export function findPerson(contact: Contact): SimPerson | null {
  const people = BY_NAME.get(nameKey(contact)) ?? [];
  return people.find(({ organization }) => isEmployer(organization, contact)) ?? null;
}

function isEmployer({ domain, name, dba }: SimOrganization, contact: Contact): boolean {
  if (contact.domain !== null) return contact.domain === domain;
  const company = letters(contact.company ?? '');
  if (company === '') return false;
  if (letters(name).startsWith(company)) return true;
  return dba !== null && letters(dba).startsWith(company);
}

function nameKey({ first, last }: { readonly first: string; readonly last: string }): string {
  return `${letters(first)} ${letters(last)}`;
}

const ORDINARY = SAMPLE_NPIS.filter((npi) => npi.startsWith('21')).map(personOf);

/** A row of NPPES's endpoint file, before its columns are written. */
export type SimEndpoint = ReturnType<typeof endpoint>;

/**
 * The endpoints of the sample, with the traps of the real file. Every ninth ordinary provider has a
 * Direct address at an affiliated practice, every eleventh the front desk of the practice, every
 * thirteenth a URL. One has a free-mail address of type DIRECT. Every fourth organization has a
 * mailbox for records. Magic providers have no endpoints, except the one whose only address is a
 * Direct one.
 */
export const SAMPLE_ENDPOINTS: readonly SimEndpoint[] = [
  endpoint({ npi: '2000000150' }, 'DIRECT', directAddress(personOf('2000000150'))),
  endpoint(pick(ORDINARY, 1), 'DIRECT', pick(ORDINARY, 1).homeEmail),
  ...every(9, ORDINARY).map((one) => endpoint(one, 'DIRECT', directAddress(one), one.organization)),
  ...every(11, ORDINARY).map((one) =>
    endpoint(one, 'OTHERS', `frontdesk@${one.organization.domain}`),
  ),
  ...every(13, ORDINARY).map((one) =>
    endpoint(one, 'FHIR', `https://fhir.${one.organization.domain}/r4`),
  ),
  ...every(4, SAMPLE_ORGANIZATIONS).map((one) => endpoint(one, 'OTHERS', `records@${one.domain}`)),
];

/** Returns a person's address at the Direct messaging host of their practice. */
export function directAddress({ workEmail }: SimPerson): string {
  return workEmail.replace('@', '@direct.');
}

/** @param affiliation null if the row says N */
function endpoint(
  { npi }: { readonly npi: string },
  type: 'DIRECT' | 'FHIR' | 'OTHERS',
  address: string,
  affiliation: SimOrganization | null = null,
) {
  return { npi, type, endpoint: address, affiliation };
}

/** @param stem nine digits */
export function withCheckDigit(stem: number): string {
  const digits = Array.from({ length: 10 }, (_, digit) => `${stem}${digit}`);
  const npi = digits.find(hasNpiCheckDigit);
  if (npi === undefined) throw new RangeError(`${stem} is not nine digits`);
  return npi;
}

function every<T>(step: number, all: readonly T[]): T[] {
  return all.filter((_, index) => index % step === 0);
}

function letters(text: string): string {
  return text.toLowerCase().replace(/[^a-z]/g, '');
}

function pick<T>(all: readonly T[], index: number): T {
  const one = all[index % all.length];
  if (one === undefined) throw new RangeError('an empty list, or a place outside of it');
  return one;
}
