import { createHash } from 'node:crypto';
import { hasNpiCheckDigit } from '../../../activities/person/npi.ts';
import { MAGIC, MAGIC_ORGANIZATION_NPI } from './magic.ts';
// Names, states with an area code and the beginning of a ZIP code, credentials with a taxonomy code: all invented.
import WORDS from './people.json' with { type: 'json' };

// Who exists in the simulated world: providers whom no one has met, at practices that do not exist, at domains nobody
// has registered, with telephone numbers set aside for fiction (555-01XX). Their NPIs lie in the row beginning with 2,
// which is not being assigned.

/** Names on doors; `.org` or `.net` after one is its domain's, the others have `.com`. */
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
/** A practice's Direct messaging host. */
export const DIRECT_DOMAIN = 'direct.cedarvalleyclinic-sim.com';
/** The domain of a practice that has closed and says that it takes no mail. */
export const CLOSED_DOMAIN = 'closedpractice-sim.com';

const FIRST_ORGANIZATION_STEM = 250_000_000;
const FIRST_PERSON_STEM = 210_000_000;
const SAMPLE_SIZE = 500;

/** A practice as NPPES has it. */
export type SimOrganization = (typeof SAMPLE_ORGANIZATIONS)[number];

/**
 * All practices of the sample; no two share a domain, an address or a telephone number. Every third does business
 * under another name than its legal one.
 */
export const SAMPLE_ORGANIZATIONS = PRACTICES.map((practice, index) => {
  const [door = '', ending = 'com'] = practice.split('.');
  const [state = '', area, zip] = pick(WORDS.places, index).split(' ');
  const twoDigits = String(index).padStart(2, '0');
  const isLast = index === PRACTICES.length - 1;
  const city = pick(WORDS.towns, index);
  const dba = index % 3 === 2 ? door.toUpperCase() : null;
  const legal = dba === null ? door.toUpperCase() : `${city} PROVIDERS ${index}`;
  const line1 = `${100 + index * 7} ${pick(WORDS.streets, index)}`;
  const line2 = index % 4 === 1 ? `STE ${200 + index}` : null;
  return {
    npi: isLast ? MAGIC_ORGANIZATION_NPI : withCheckDigit(FIRST_ORGANIZATION_STEM + index),
    /** The legal business name. */
    name: `${legal} ${pick(WORDS.legalForms, index)}`,
    /** The name on its door; null if that is the legal one. */
    dba,
    domain: `${letters(door)}-sim.${ending}`,
    address: { line1, line2, city, state, zip: `${zip}${twoDigits}` },
    phone: `${area}55501${twoDigits}`,
  };
});

/** Domains of simulated practices; the local name server knows them, the internet does not. */
export const PRACTICE_DOMAINS: readonly string[] = SAMPLE_ORGANIZATIONS.map(({ domain }) => domain);

/** A provider as NPPES and the simulated vendors know them. */
export type SimPerson = ReturnType<typeof personOf>;

/**
 * The provider of an NPI, derived from its digits, so that a number is the same person in every run.
 * @param npi 10 digits
 */
export function personOf(npi: string) {
  const digest = digestOf(npi);
  const byte = (index: number) => digest.readUInt8(index);
  const magic = MAGIC.get(npi);
  // As people write it: `Mary Jo`, `O'Malley`.
  const [first = '', last = ''] = magic?.name.split(' ') ?? [
    pick(WORDS.firstNames, byte(4)),
    pick(WORDS.lastNames, byte(5)),
  ];
  // Where they practice: its address and telephone are theirs.
  const own = PRACTICE_DOMAINS.findIndex((domain) => domain.startsWith(`${magic?.practice}-sim.`));
  const organization = pick(SAMPLE_ORGANIZATIONS, magic ? own : byte(6));
  const middle = byte(9) % 3 === 0 ? pick(WORDS.firstNames, byte(10)) : null;
  const [credential = '', taxonomy = ''] = pick(WORDS.professions, byte(8)).split(' ');
  const workEmail = `${letters(first)}.${letters(last)}@${organization.domain}`;
  // In a form that nobody is likely to have.
  const homeEmail = `npi${npi}.sim@${pick(FREE_MAIL_DOMAINS, magic ? 0 : byte(7))}`;
  return { npi, first, last, middle, credential, taxonomy, organization, workEmail, homeEmail };
}

/** What all that is derived from the digits of an NPI is drawn from. */
export function digestOf(npi: string): Buffer {
  return createHash('sha256').update(npi).digest();
}

/** The individuals that the sample of NPPES knows, every magic one among them; no two share a name and a practice. */
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

/** Whom a vendor that searches by name and employer is asked about. */
export interface Contact {
  readonly first: string;
  readonly last: string;
  /** At least one of the two is given. */
  readonly domain: string | null;
  readonly company: string | null;
}

/**
 * Whom of the sample a vendor finds: the name without its spaces and marks; the employer by its domain, or if none is
 * given by how a name of it begins (`Cedar Valley Clinic` without `, P.L.L.C.`).
 * @returns null if nobody matches
 */
export function findPerson(contact: Contact): SimPerson | null {
  const company = letters(contact.company ?? '');
  const worksThere = ({ organization: { domain, name, dba } }: SimPerson) =>
    contact.domain === null
      ? company !== '' && [name, dba ?? ''].some((one) => letters(one).startsWith(company))
      : domain === contact.domain;
  return BY_NAME.get(nameKey(contact))?.find(worksThere) ?? null;
}

function nameKey({ first, last }: { readonly first: string; readonly last: string }): string {
  return `${letters(first)} ${letters(last)}`;
}

const ORDINARY = SAMPLE_NPIS.filter((npi) => npi.startsWith('21')).map(personOf);

/** One row of NPPES's endpoint file, before its columns are written out. */
export type SimEndpoint = ReturnType<typeof endpoint>;

/**
 * All endpoints of the sample, with the traps of the real file: every ninth ordinary provider has a Direct address at a
 * practice they are affiliated with, every eleventh their practice's front desk, every thirteenth a URL; one has a
 * free-mail address typed as DIRECT; every fourth organization has a mailbox for records. Providers who are magic have
 * none, but for the one whose only address is a Direct one.
 */
export const SAMPLE_ENDPOINTS: readonly SimEndpoint[] = [
  endpoint({ npi: '2000000150' }, 'DIRECT', directAddress(personOf('2000000150'))),
  endpoint(pick(ORDINARY, 1), 'DIRECT', pick(ORDINARY, 1).homeEmail),
  ...every(9, ORDINARY).map((one) => endpoint(one, 'DIRECT', directAddress(one), one.organization)),
  ...every(11, ORDINARY).map((one) => endpoint(one, 'OTHERS', `frontdesk@${one.organization.domain}`)),
  ...every(13, ORDINARY).map((one) => endpoint(one, 'FHIR', `https://fhir.${one.organization.domain}/r4`)),
  ...every(4, SAMPLE_ORGANIZATIONS).map((one) => endpoint(one, 'OTHERS', `records@${one.domain}`)),
];

/** A person's address at the Direct messaging host of their practice. */
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
