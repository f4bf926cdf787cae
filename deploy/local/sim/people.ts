import { createHash } from 'node:crypto';
import { SAMPLE_ORGANIZATIONS, type SimOrganization, withCheckDigit } from './organizations.ts';

// Who exists in the simulated world: providers that no one has met, at practices that do not exist.

export { SAMPLE_ORGANIZATIONS, type SimOrganization };

/** A provider as NPPES and the simulated vendors know them. */
export interface SimPerson {
  readonly npi: string;
  /** As people write it: `Mary Jo`, `O'Malley`. */
  readonly first: string;
  readonly last: string;
  readonly middle: string | null;
  readonly credential: string;
  /** A NUCC taxonomy code. */
  readonly taxonomy: string;
  /** Where they practise: its address and telephone are theirs. */
  readonly organization: SimOrganization;
  readonly workEmail: string;
  readonly homeEmail: string;
}

/** Domains of simulated practices; the local name server knows them, the internet does not. */
export const PRACTICE_DOMAINS: readonly string[] = SAMPLE_ORGANIZATIONS.map(({ domain }) => domain);

/** Free-mail domains of simulated personal addresses. */
export const FREE_MAIL_DOMAINS = [
  'gmail.com',
  'yahoo.com',
  'outlook.com',
  'icloud.com',
  'comcast.net',
] as const;

const FIRST_NAMES =
  `Adaeze Bram Carlotta Dimitri Elspeth Farid Gwen Hollis Ines Jorah Kavya Leif Mirela Nils Odette Priya Quentin
  Rosalind Soren Tamsin Ulises Vesna Wilhelm Xiomara Yusuf Zelda Mary_Jo Anneke Benicio Cosima Dashiell Eulalia
  Florian Ghislaine Henrike Isolde Jacinta Kristof Lucasta Magnus Nadezhda Octavio Perpetua Ravindra Saskia
  Thaddeus Ursula Valentin Wenceslas Yolanda`
    .split(/\s+/)
    .map((name) => name.replace('_', ' '));
const LAST_NAMES =
  `Abernethy Brightwater Castellane Drummond Eskildsen Fairweather Goldfinch Hartigan Ibarra Jankowski Kingsolver
  Lockhart Montague Nightingale Okonjo Pemberton Quillfeather Rasmussen Silverstone Thornbury Underhill Valcourt
  Whitlock Yarborough Zimmerman O'Malley Castellano-Reyes Ashgrove Bellwether Copperfield Dunmore Ellingham
  Farnsworth Grimaldi Hollingsworth Iverness Jaworski Kilbride Lindqvist Merriweather Nakashima Oyelowo Pettibone
  Quarrington Rutherglen Stavropoulos Trevanion Uzoma Vandermeer Wainwright Xanthos Yellowlees Zielinski`.split(
    /\s+/,
  );
/** Credential and taxonomy code, in pairs that occur together. */
const PROFESSIONS = [
  ['MD', '207Q00000X'],
  ['MD', '207R00000X'],
  ['DO', '207Q00000X'],
  ['MD', '208000000X'],
  ['NP', '363LF0000X'],
  ['PA-C', '363A00000X'],
  ['MD', '207RC0000X'],
  ['MD', '207N00000X'],
  ['DDS', '122300000X'],
  ['DPT', '225100000X'],
] as const;

/** NPI, name, and the domain of the practice, of those whose behaviour is set: see magic.ts. */
const MAGIC_PEOPLE: ReadonlyMap<string, readonly [first: string, last: string, domain: string]> = new Map([
  ['2000000010', ['Rowan', 'Ashdown', 'cedarvalleyclinic-sim.com']],
  ['2000000028', ['Delphine', 'Marlowe', 'northgatecardiology-sim.com']],
  ['2000000036', ['Imani', 'Bellweather', 'cedarvalleyclinic-sim.com']],
  ['2000000044', ['Casimir', 'Thorne', 'riverbendhealth-sim.org']],
  ['2000000051', ['Avery', 'Lindqvist', 'harborfamilymedicine-sim.com']],
  ['2000000069', ['Noor', 'Castellano', 'lakesidepediatrics-sim.com']],
  ['2000000077', ['Tomas', 'Ferreira', 'summitorthopedics-sim.com']],
  ['2000000085', ['Hester', 'Vanterpool', 'mesaviewdermatology-sim.com']],
  ['2000000101', ['Bertrand', 'Osei', 'oldtownprimarycare-sim.net']],
  ['2000000119', ['Salome', 'Winterbourne', 'harborfamilymedicine-sim.com']],
  ['2000000127', ['Leona', 'Marchetti', 'cedarvalleyclinic-sim.com']],
  ['2000000135', ['Piotr', 'Vasquez', 'cedarvalleyclinic-sim.com']],
  ['2000000143', ['Greta', 'Oyelaran', 'cedarvalleyclinic-sim.com']],
  ['2000000150', ['Sunil', 'Harrow', 'cedarvalleyclinic-sim.com']],
  ['2000000168', ['Wren', 'Halloway', 'lakesidepediatrics-sim.com']],
  ['2000000176', ['Ottoline', 'Prescott', 'riverbendhealth-sim.org']],
  ['2000000184', ['Marcus', 'Delacroix', 'cedarvalleyclinic-sim.com']],
  ['2000000192', ['Philippa', 'Stonehouse', 'northgatecardiology-sim.com']],
  ['2000000200', ['Anatole', 'Birkenfeld', 'summitorthopedics-sim.com']],
  ['2000000218', ['Marisol', 'Kettleburn', 'mesaviewdermatology-sim.com']],
  ['2000000226', ['Cordelia', 'Ashworth', 'oldtownprimarycare-sim.net']],
]);

const FIRST_STEM = 210_000_000;
const SAMPLE_SIZE = 500;

/**
 * The provider of an NPI, derived from its digits, so that a number is the same person in every run.
 * @param npi 10 digits
 */
export function personOf(npi: string): SimPerson {
  const digest = createHash('sha256').update(npi).digest();
  const byte = (index: number) => digest.readUInt8(index);
  const magic = MAGIC_PEOPLE.get(npi);
  const [first, last] = magic ?? [pick(FIRST_NAMES, byte(4)), pick(LAST_NAMES, byte(5))];
  const organization = magic ? practiceAt(magic[2]) : pick(SAMPLE_ORGANIZATIONS, byte(6));
  const freeMail = magic ? FREE_MAIL_DOMAINS[0] : pick(FREE_MAIL_DOMAINS, byte(7));
  const [credential, taxonomy] = pick(PROFESSIONS, byte(8));
  return {
    npi,
    first,
    last,
    middle: byte(9) % 3 === 0 ? pick(FIRST_NAMES, byte(10)) : null,
    credential,
    taxonomy,
    organization,
    workEmail: `${letters(first)}.${letters(last)}@${organization.domain}`,
    // In a form that nobody is likely to have.
    homeEmail: `npi${npi}.sim@${freeMail}`,
  };
}

/** The individuals that the sample of NPPES knows, every magic one among them; no two share a name and a practice. */
export const SAMPLE_NPIS: readonly string[] = sampleNpis();

function sampleNpis(): string[] {
  const npis = [...MAGIC_PEOPLE.keys()];
  const taken = new Set(npis.map((npi) => personOf(npi).workEmail));
  for (let stem = FIRST_STEM; npis.length < SAMPLE_SIZE; stem += 1) {
    const npi = withCheckDigit(stem);
    const { workEmail } = personOf(npi);
    if (taken.has(workEmail)) continue;
    taken.add(workEmail);
    npis.push(npi);
  }
  return npis;
}

const BY_NAME: ReadonlyMap<string, readonly SimPerson[]> = Map.groupBy(SAMPLE_NPIS.map(personOf), nameKey);

/**
 * Whom of the sample a vendor that searches by name and employer finds: the name in any case, without its spaces
 * and marks; the employer by its domain, or by a name of it that says the same (`Cedar Valley Clinic, P.L.L.C.`).
 * @returns null where nobody matches, or no employer is given
 */
export function findPerson(
  name: { readonly first: string; readonly last: string },
  at: { readonly domain?: string | null; readonly company?: string | null },
): SimPerson | null {
  const domain = at.domain?.toLowerCase().replace(/^www\./, '');
  const company = companyKey(at.company ?? '');
  const worksThere = ({ organization }: SimPerson) =>
    organization.domain === domain ||
    (company !== '' &&
      [organization.name, organization.dba ?? ''].some((own) => companyKey(own) === company));
  return BY_NAME.get(nameKey(name))?.find(worksThere) ?? null;
}

function nameKey({ first, last }: { readonly first: string; readonly last: string }): string {
  return `${letters(first)} ${letters(last)}`;
}

/** Words without the legal form and the article; empty where nothing is left. */
function companyKey(name: string): string {
  const words = name
    .toLowerCase()
    .replace(/[.']/g, '')
    .split(/[^a-z0-9]+/);
  return words.filter((word) => !LEGAL_WORDS.has(word)).join('');
}

const LEGAL_WORDS = new Set([
  'the',
  'pllc',
  'llc',
  'pc',
  'inc',
  'incorporated',
  'llp',
  'ltd',
  'pa',
  'corp',
  'co',
]);

function letters(text: string): string {
  return text.toLowerCase().replace(/[^a-z]/g, '');
}

function practiceAt(domain: string): SimOrganization {
  const practice = SAMPLE_ORGANIZATIONS.find((one) => one.domain === domain);
  if (practice === undefined) throw new RangeError(`no practice at ${domain}`);
  return practice;
}

function pick<T>(list: readonly [T, ...T[]] | readonly T[], index: number): T {
  const one = list[index % list.length];
  if (one === undefined) throw new RangeError('an empty list');
  return one;
}
