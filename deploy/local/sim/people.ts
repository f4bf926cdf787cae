import { createHash } from 'node:crypto';
import { hasNpiCheckDigit } from '../../../activities/person/npi.ts';

// Who exists in the simulated world: providers whom no one has met, at practices that do not exist, at domains nobody
// has registered, with telephone numbers set aside for fiction (555-01XX). Their NPIs lie in the row beginning with 2,
// which is not being assigned.

/** What NPPES says of each type of endpoint here. */
export const ENDPOINT_WORDS = {
  DIRECT: { use: 'DIRECT', description: 'Direct Messaging Address' },
  FHIR: { use: 'HIE', description: 'FHIR URL' },
  OTHERS: { use: 'OTHER', description: 'Other URL' },
} as const;

/** Sixty names on doors; `.org` or `.net` after one is its domain's, the others have `.com`. */
const PRACTICES = list(
  `Cedar Valley Clinic, Harbor Family Medicine, Northgate Cardiology, Lakeside Pediatrics, Summit Orthopedics,
  Riverbend Health.org, Mesa View Dermatology, Oldtown Primary Care.net, Alder Brook Internists,
  Amberfield Women's Health, Ash Grove Medical Group, Bayhaven Urology, Birch Hollow Family Practice,
  Blue Heron Community Hospital.org, Brightwater Allergy & Asthma, Canyon Ridge Pain Center, Cloverleaf Pediatrics,
  Copper Hill Surgery Center, Cottonwood Neurology, Crescent Lake Health.org, Dove Creek Clinic,
  Eagle Pass Orthopaedics, East Marsh Gastroenterology, Elmwood Eye Care, Fairhaven OB/GYN,
  Fernwood Behavioral Health, Foxglove Dental, Glass River Oncology.org, Golden Plains Rural Health.org,
  Granite Bay Medical Associates, Green Meadow Vein Institute, Hawthorn Pulmonary, Hazelcrest ENT,
  Heatherfield Rehabilitation, Hollow Oak Nephrology, Ironwood Urgent Care, Juniper Trail Clinic.net,
  Kestrel Heart Center, Larkspur Fertility, Laurel Mountain Health System.org, Linden Park Medical,
  Longmeadow Geriatrics, Maple Street Medicine.net, Marigold Podiatry, Mill Pond Family Physicians,
  Moonstone Imaging, North Star Hospitalists, Orchard View Kids, Osprey Point Medical Center.org,
  Palisade Plastic Surgery, Pine Bluff Anesthesia, Prairie Wind Health.org, Quartz Creek Physical Therapy,
  Red Rock Endocrinology, Sagebrush Psychiatry, Silver Pine Hospice.org, Stonebridge Primary Care,
  Tidewater Hand Surgery, Westwind Rheumatology, Willow Bend Medical`,
);
/** State, area code, first three digits of its ZIP codes. */
const PLACES = list(
  'CO 303 802, TX 512 787, OH 614 432, WA 206 981, NC 919 276, MN 612 554, AZ 602 850, GA 404 303, OR 503 972, PA 215 191',
);
const TOWNS = list(
  'CEDAR VALLEY, HARBOR GLEN, NORTHGATE, LAKESIDE MILLS, SUMMIT FALLS, RIVERBEND, MESA VIEW',
);
const STREETS = list('MAIN ST, SECOND AVE, HOSPITAL DR, OLD MILL RD, PARK BLVD, WALNUT ST, COUNTY RD 9');
const LEGAL_FORMS = list('PLLC, LLC, PC, INC, LLP');
const FIRST_NAMES = list(
  `Adaeze, Bram, Carlotta, Dimitri, Elspeth, Farid, Gwen, Hollis, Ines, Jorah, Kavya, Leif, Mirela, Nils, Odette,
  Priya, Quentin, Rosalind, Soren, Tamsin, Ulises, Vesna, Wilhelm, Xiomara, Yusuf, Zelda, Mary Jo, Anneke, Benicio,
  Cosima, Dashiell, Eulalia, Florian, Ghislaine, Henrike, Isolde, Jacinta, Kristof, Lucasta, Magnus, Nadezhda,
  Octavio, Perpetua, Ravindra, Saskia, Thaddeus, Ursula, Valentin, Wenceslas, Yolanda`,
);
const LAST_NAMES = list(
  `Abernethy, Brightwater, Castellane, Drummond, Eskildsen, Fairweather, Goldfinch, Hartigan, Ibarra, Jankowski,
  Kingsolver, Lockhart, Montague, Nightingale, Okonjo, Pemberton, Quillfeather, Rasmussen, Silverstone, Thornbury,
  Underhill, Valcourt, Whitlock, Yarborough, Zimmerman, O'Malley, Castellano-Reyes, Ashgrove, Bellwether,
  Copperfield, Dunmore, Ellingham, Farnsworth, Grimaldi, Hollingsworth, Iverness, Jaworski, Kilbride, Lindqvist,
  Merriweather, Nakashima, Oyelowo, Pettibone, Quarrington, Rutherglen, Stavropoulos, Trevanion, Uzoma, Vandermeer,
  Wainwright, Xanthos, Yellowlees, Zielinski`,
);
/** Credential and taxonomy code, in pairs that occur together. */
const PROFESSIONS = list(
  `MD 207Q00000X, MD 207R00000X, DO 207Q00000X, MD 208000000X, NP 363LF0000X, PA-C 363A00000X, MD 207RC0000X,
  MD 207N00000X, DDS 122300000X, DPT 225100000X`,
);
/** Free-mail domains of simulated personal addresses. */
export const FREE_MAIL_DOMAINS = list('gmail.com, yahoo.com, outlook.com, icloud.com, comcast.net');
/** A practice's Direct messaging host. */
export const DIRECT_DOMAIN = 'direct.cedarvalleyclinic-sim.com';
/** The domain of a practice that has closed and says that it takes no mail. */
export const CLOSED_DOMAIN = 'closedpractice-sim.com';

/** Name and practice of those whose behavior is set: see magic.ts. */
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
/** The magic NPI of an organization, the last of the sample. */
export const MAGIC_ORGANIZATION_NPI = '2000000093';

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
  const [state = '', area, zip] = pick(PLACES, index).split(' ');
  const twoDigits = String(index).padStart(2, '0');
  const isLast = index === PRACTICES.length - 1;
  const city = pick(TOWNS, index);
  const dba = index % 3 === 2 ? door.toUpperCase() : null;
  const legal = dba === null ? door.toUpperCase() : `${city} PROVIDERS ${index}`;
  const line1 = `${100 + index * 7} ${pick(STREETS, index)}`;
  const line2 = index % 4 === 1 ? `STE ${200 + index}` : null;
  return {
    npi: isLast ? MAGIC_ORGANIZATION_NPI : withCheckDigit(FIRST_ORGANIZATION_STEM + index),
    /** The legal business name. */
    name: `${legal} ${pick(LEGAL_FORMS, index)}`,
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
  const magic = MAGIC_PEOPLE.get(npi);
  // As people write it: `Mary Jo`, `O'Malley`.
  const [first, last] = magic ?? [pick(FIRST_NAMES, byte(4)), pick(LAST_NAMES, byte(5))];
  // Where they practice: its address and telephone are theirs.
  const organization = pick(SAMPLE_ORGANIZATIONS, magic ? PRACTICE_DOMAINS.indexOf(magic[2]) : byte(6));
  const middle = byte(9) % 3 === 0 ? pick(FIRST_NAMES, byte(10)) : null;
  const [credential = '', taxonomy = ''] = pick(PROFESSIONS, byte(8)).split(' ');
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
  const npis = new Map(Array.from(MAGIC_PEOPLE.keys(), (npi) => [personOf(npi).workEmail, npi]));
  for (let stem = FIRST_PERSON_STEM; npis.size < SAMPLE_SIZE; stem += 1) {
    const { npi, workEmail } = personOf(withCheckDigit(stem));
    if (!npis.has(workEmail)) npis.set(workEmail, npi);
  }
  return [...npis.values()];
}

const BY_NAME = Map.groupBy(SAMPLE_NPIS.map(personOf), nameKey);

/**
 * Whom of the sample a vendor that searches by name and employer finds: the name in any case, without its spaces
 * and marks; the employer by its domain, or by a name of it that says the same (`Cedar Valley Clinic, P.L.L.C.`).
 * @returns null if nobody matches, or no employer is given
 */
export function findPerson(
  name: { readonly first: string; readonly last: string },
  at: { readonly domain?: string | null; readonly company?: string | null },
): SimPerson | null {
  const domain = at.domain?.toLowerCase().replace(/^(https?:\/\/)?(www\.)?([^/]*).*$/, '$3');
  const company = companyKey(at.company ?? '');
  const worksThere = ({ organization: { domain: own, name, dba } }: SimPerson) =>
    own === domain || (company !== '' && [companyKey(name), companyKey(dba ?? '')].includes(company));
  return BY_NAME.get(nameKey(name))?.find(worksThere) ?? null;
}

function nameKey({ first, last }: { readonly first: string; readonly last: string }): string {
  return `${letters(first)} ${letters(last)}`;
}

/** Without the legal form and the article; empty if nothing is left. */
function companyKey(name: string): string {
  const words = name.toLowerCase().replace(/[.']/g, '');
  return words
    .replace(/\b(the|pllc|llc|pc|inc|incorporated|llp|ltd|pa|corp|co)\b/g, '')
    .replace(/[^a-z0-9]/g, '');
}

const ORDINARY = SAMPLE_NPIS.filter((npi) => npi.startsWith('21')).map(personOf);

const GMAIL_USERS = ORDINARY.filter(({ homeEmail }) => homeEmail.endsWith('@gmail.com'));

/** One row of NPPES's endpoint file, before its columns are written out. */
export type SimEndpoint = ReturnType<typeof endpoint>;

/** Somebody gave NPPES an ordinary address as a Direct one. */
export const FREE_MAIL_AS_DIRECT = endpoint(pick(GMAIL_USERS, 0), 'DIRECT', pick(GMAIL_USERS, 0).homeEmail);

/**
 * All endpoints of the sample, with the traps of the real file: every ninth ordinary provider has a Direct address at a
 * practice they are affiliated with, every eleventh their practice's front desk, every thirteenth a URL; one has a
 * free-mail address typed as DIRECT; every fourth organization has a mailbox for records. Providers who are magic have
 * none, but for the one whose only address is a Direct one.
 */
export const SAMPLE_ENDPOINTS: readonly SimEndpoint[] = [
  endpoint({ npi: '2000000150' }, 'DIRECT', directAddress(personOf('2000000150'))),
  FREE_MAIL_AS_DIRECT,
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
  type: keyof typeof ENDPOINT_WORDS,
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

function list(text: string): readonly string[] {
  return text.split(/,\s+/);
}

function letters(text: string): string {
  return text.toLowerCase().replace(/[^a-z]/g, '');
}

function pick<T>(all: readonly T[], index: number): T {
  const one = all[index % all.length];
  if (one === undefined) throw new RangeError('an empty list, or a place outside of it');
  return one;
}
