import { createHash } from 'node:crypto';
import { hasNpiCheckDigit } from '../../../db/providers/npi.ts';
import { MAGIC, MAGIC_ORGANIZATION_NPI } from './magic.ts';
// people.json has invented names. Each entry of `places` is a state, a telephone area code, and the
// first digits of a ZIP code. Each entry of `professions` is a credential and a taxonomy code.
import WORDS from './people.json' with { type: 'json' };

// Defines the simulated people: invented providers at invented practices. The domains of the
// practices are not registered, and the telephone numbers are reserved for fiction (555-01XX). The
// NPIs begin with 2, and real NPIs that begin with 2 have not been assigned so far.

/**
 * The names under which the practices do business. An ending such as `.org` or `.net` is not part
 * of the name but of the practice's domain. The domain of a practice without an ending here ends
 * with `.com`.
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
/** The domains of the simulated personal addresses. */
export const FREE_MAIL_DOMAINS: readonly string[] = WORDS.freeMail;
/** The domain of the Direct (secure health email) addresses of one practice. */
export const DIRECT_DOMAIN = 'direct.cedarvalleyclinic-sim.com';
/** The domain of a closed practice. Its MX record says that it accepts no mail. */
export const CLOSED_DOMAIN = 'closedpractice-sim.com';

const FIRST_ORGANIZATION_STEM = 250_000_000;
const FIRST_PERSON_STEM = 210_000_000;
const SAMPLE_SIZE = 500;

/** A practice with the values that NPPES has about it. */
export type SimOrganization = (typeof SAMPLE_ORGANIZATIONS)[number];

/**
 * The practices of the sample. Each has its own domain, address, and telephone number. Every third
 * practice does business under another name than its legal name.
 */
export const SAMPLE_ORGANIZATIONS = PRACTICES.map((practice, index) => {
  const [door = '', ending = 'com'] = practice.split('.');
  const [state = '', area, zip] = pick(WORDS.places, index).split(' ');
  const twoDigits = String(index).padStart(2, '0');
  const isLast = index === PRACTICES.length - 1;
  const npi = isLast
    ? MAGIC_ORGANIZATION_NPI
    : withCheckDigit(FIRST_ORGANIZATION_STEM + index);
  const city = pick(WORDS.towns, index);
  const nameOnDoor = door.toUpperCase();
  const hasOtherName = index % 3 === 2;
  const legal = hasOtherName ? `${city} PROVIDERS ${index}` : nameOnDoor;
  const suite = index % 4 === 1 ? `STE ${200 + index}` : null;
  return {
    npi,
    /** The legal business name. */
    name: `${legal} ${pick(WORDS.legalForms, index)}`,
    /** The name under which the practice does business, or null if it uses its legal name. */
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

/** The domains of the simulated practices. Only the local name server knows these domains. */
export const PRACTICE_DOMAINS: readonly string[] = SAMPLE_ORGANIZATIONS.map(
  ({ domain }) => domain,
);

/** A provider as NPPES and the simulated vendors know them. */
export type SimPerson = ReturnType<typeof personOf>;

/**
 * Returns the provider with an NPI. All values are derived from the digits, so an NPI is the same
 * person in every run.
 * @param npi 10 digits
 */
export function personOf(npi: string) {
  const digest = digestOf(npi);
  const byte = (index: number) => digest.readUInt8(index);
  // These names are in mixed case, such as `Mary Jo` and `O'Malley`.
  let first = pick(WORDS.firstNames, byte(4));
  let last = pick(WORDS.lastNames, byte(5));
  // The provider has the address and the telephone number of this practice.
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
  // The domain belongs to a real provider of free mail, so the address has a form that real
  // addresses are unlikely to have.
  const homeEmail = `npi${npi}.sim@${freeMail}`;
  return {
    npi,
    first,
    last,
    middle,
    credential,
    taxonomy,
    organization,
    workEmail,
    homeEmail,
  };
}

/**
 * Finds a practice by its domain.
 * @param practice the domain without `-sim` and the ending, such as `cedarvalleyclinic`
 */
function organizationOf(practice: string): SimOrganization {
  const index = PRACTICE_DOMAINS.findIndex((domain) =>
    domain.startsWith(`${practice}-sim.`),
  );
  return pick(SAMPLE_ORGANIZATIONS, index);
}

/** Returns a hash of an NPI. All properties of the NPI's person are derived from its bytes. */
export function digestOf(npi: string): Buffer {
  return createHash('sha256').update(npi).digest();
}

/**
 * The NPIs of the individuals in the NPPES sample, including all people with magic NPIs. No two
 * people have the same name and the same practice.
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

/** The name and employer in a request to a vendor. */
export interface Contact {
  readonly first: string;
  readonly last: string;
  /** The domain of the employer. At least one of `domain` and `company` is given. */
  readonly domain: string | null;
  readonly company: string | null;
}

/**
 * Finds a person of the sample by name and employer. Names are compared without spaces and
 * punctuation. If the request has a domain, it must be the employer's. Otherwise the company must
 * be the beginning of one of the employer's names, such as `Cedar Valley Clinic` for `Cedar Valley
 * Clinic, P.L.L.C.`.
 * @returns null if no person matches
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

function nameKey({
  first,
  last,
}: {
  readonly first: string;
  readonly last: string;
}): string {
  return `${letters(first)} ${letters(last)}`;
}

const ORDINARY = SAMPLE_NPIS.filter((npi) => npi.startsWith('21')).map(personOf);

/** The values of a row in NPPES's endpoint file. */
export type SimEndpoint = ReturnType<typeof endpoint>;

/**
 * The endpoints of the sample. They have the same difficulties as the real file:
 * - Every ninth provider without a magic NPI has a Direct address at an affiliated practice.
 * - Every eleventh of these providers has the address of the practice's front desk.
 * - Every thirteenth of them has a URL.
 * - One of them has a personal address that is entered with the type DIRECT.
 * - Every fourth organization has a mailbox for records.
 * - One provider with a magic NPI has only a Direct address. The other providers with magic NPIs
 *   have no endpoints.
 */
export const SAMPLE_ENDPOINTS: readonly SimEndpoint[] = [
  endpoint({ npi: '2000000150' }, 'DIRECT', directAddress(personOf('2000000150'))),
  endpoint(pick(ORDINARY, 1), 'DIRECT', pick(ORDINARY, 1).homeEmail),
  ...every(9, ORDINARY).map((one) =>
    endpoint(one, 'DIRECT', directAddress(one), one.organization),
  ),
  ...every(11, ORDINARY).map((one) =>
    endpoint(one, 'OTHERS', `frontdesk@${one.organization.domain}`),
  ),
  ...every(13, ORDINARY).map((one) =>
    endpoint(one, 'FHIR', `https://fhir.${one.organization.domain}/r4`),
  ),
  ...every(4, SAMPLE_ORGANIZATIONS).map((one) =>
    endpoint(one, 'OTHERS', `records@${one.domain}`),
  ),
];

/** Returns a person's Direct address, at the practice's domain with the prefix `direct.`. */
export function directAddress({ workEmail }: SimPerson): string {
  return workEmail.replace('@', '@direct.');
}

/**
 * Returns the values of a row in NPPES's endpoint file.
 * @param affiliation the affiliated practice, or null if the column Affiliation is `N`
 */
function endpoint(
  { npi }: { readonly npi: string },
  type: 'DIRECT' | 'FHIR' | 'OTHERS',
  address: string,
  affiliation: SimOrganization | null = null,
) {
  return { npi, type, endpoint: address, affiliation };
}

/**
 * Returns the NPI with a correct check digit.
 * @param stem the first nine digits
 */
export function withCheckDigit(stem: number): string {
  const digits = Array.from({ length: 10 }, (_, digit) => `${stem}${digit}`);
  const npi = digits.find(hasNpiCheckDigit);
  if (npi === undefined) {
    throw new RangeError(`${stem} is not nine digits`);
  }
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
  if (one === undefined) {
    throw new RangeError('an empty list, or a place outside of it');
  }
  return one;
}
