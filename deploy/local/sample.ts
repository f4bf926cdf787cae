import { createWriteStream } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { ZipFile } from 'yazl';
import { importDownload } from '../nppes/importer.ts';
import { LAYOUT, MEMBER_KINDS, type MemberKind } from '../nppes/layout.ts';
import { DEACTIVATED_NPIS } from './sim/magic.ts';
import {
  personOf,
  SAMPLE_ENDPOINTS,
  SAMPLE_NPIS,
  SAMPLE_ORGANIZATIONS,
  type SimEndpoint,
  type SimOrganization,
  type SimPerson,
  withCheckDigit,
} from './sim/people.ts';

// The simulated world as NPPES would publish it: a monthly download, and a weekly one after it, with what makes the
// real ones hard to read.

/** Values by the names of their columns; the others are empty. */
export type NppesValues = Readonly<Record<string, string>>;

const MONTHLY = '20050523-20261108';
const WEEKLY = '20261109-20261115';
const PRACTICE = 'Provider Business Practice Location Address';
const SECONDARY = 'Provider Secondary Practice Location Address';
const LAST_NAME = 'Provider Last Name (Legal Name)';

/** Beside the sample's people, so that nobody who is looked up changes: these are there for the weekly download. */
const RENAMED = personOf(withCheckDigit(260_000_001));
const LEAVING = personOf(withCheckDigit(260_000_002));
const RETURNING = personOf(withCheckDigit(260_000_003));
const ARRIVING = personOf(withCheckDigit(260_000_004));
const RETURNED = { 'NPI Deactivation Date': '03/14/2024', 'NPI Reactivation Date': '11/12/2026' };
const CHANGED = { 'Last Update Date': '11/12/2026' };

/**
 * Writes the sample of NPPES and brings it in through the real importer, the monthly file and then the weekly one.
 * Files that were imported before change nothing.
 * @returns the rows read, for people
 * @throws {ImportProblem}
 */
export async function importSample(databaseUrl: string, dir: string): Promise<number> {
  const folder = join(dir, 'nppes');
  await mkdir(folder, { recursive: true });
  const { zip, weekly } = await writeSample(folder);
  let rows = 0;
  for (const path of [zip, weekly]) {
    const { counts } = await importDownload({
      dataset: 'nppes',
      databaseUrl,
      path,
      rejects: `${path}.rejects.csv`,
      actor: 'npm start',
      reason: 'local stack',
      output: { terminal: null, line: () => {} },
    });
    rows += counts['npidata.read'] ?? 0;
  }
  return rows;
}

/**
 * Writes both downloads to a folder. The same content each time, so that an import knows them again.
 * @param folder exists; files of the same name are replaced
 * @returns where they are, in the order in which they are to be imported
 */
export async function writeSample(folder: string): Promise<{ zip: string; weekly: string }> {
  const zip = join(folder, 'NPPES_Data_Dissemination_November_2026_V2.zip');
  const weekly = join(folder, 'NPPES_Data_Dissemination_110926_111526_Weekly_V2.zip');
  const files = filesOf(MONTHLY, {
    npidata: monthlyRows(),
    othername: SAMPLE_ORGANIZATIONS.flatMap(otherNameRow),
    pl: SAMPLE_NPIS.flatMap(locationRow),
    endpoint: SAMPLE_ENDPOINTS.map(endpointRow),
  });
  const readme = { name: 'NPPES_Data_Dissemination_Readme_v.2.pdf', content: Buffer.from('%PDF-1.4\n') };
  await writeZip(zip, [...files, readme]);
  const later = filesOf(WEEKLY, { npidata: weeklyRows(), othername: [], pl: [], endpoint: [] });
  await writeZip(weekly, later.map(withOldColumnName));
  return { zip, weekly };
}

function monthlyRows(): NppesValues[] {
  const inService = SAMPLE_NPIS.filter((npi) => !DEACTIVATED_NPIS.includes(npi));
  return [
    ...inService.map((npi, index) => personRow(personOf(npi), trapsOf(index))),
    ...SAMPLE_ORGANIZATIONS.map(organizationRow),
    ...[...DEACTIVATED_NPIS, RETURNING.npi].map((npi) => deactivatedRow(npi, '03/14/2024')),
    personRow(RENAMED),
    personRow(LEAVING),
  ];
}

function weeklyRows(): NppesValues[] {
  return [
    personRow(RENAMED, {
      [LAST_NAME]: 'ABERNETHY-SIM',
      'Provider Other Last Name': RENAMED.last.toUpperCase(),
      ...CHANGED,
    }),
    deactivatedRow(LEAVING.npi, '11/10/2026'),
    personRow(RETURNING, { ...RETURNED, ...CHANGED }),
    personRow(ARRIVING, CHANGED),
  ];
}

function personRow(person: SimPerson, more: NppesValues = {}): NppesValues {
  return {
    NPI: person.npi,
    'Entity Type Code': '1',
    [LAST_NAME]: person.last.toUpperCase(),
    'Provider First Name': person.first.toUpperCase(),
    'Provider Middle Name': person.middle?.toUpperCase() ?? '',
    'Provider Credential Text': person.credential,
    'Provider Sex Code': 'X',
    'Is Sole Proprietor': 'N',
    ...placeOf(person.organization),
    ...taxonomyOf(person.taxonomy),
    ...more,
  };
}

/** Masked licenses, and bytes that aren't UTF-8: see `filesOf`. */
function trapsOf(index: number): NppesValues {
  return {
    ...(index % 10 === 3 ? { 'Provider License Number_1': '$$$$$$$$$' } : {}),
    ...(index % 50 === 7 ? { 'Provider Other Last Name': 'MUÑOZ' } : {}),
  };
}

function organizationRow(organization: SimOrganization): NppesValues {
  return {
    NPI: organization.npi,
    'Entity Type Code': '2',
    'Employer Identification Number (EIN)': '<UNAVAIL>',
    'Provider Organization Name (Legal Business Name)': organization.name,
    'Provider Other Organization Name': organization.dba === null ? '' : '<UNAVAIL>',
    'Is Organization Subpart': 'N',
    ...placeOf(organization),
    ...taxonomyOf('261Q00000X'),
  };
}

function deactivatedRow(npi: string, date: string): NppesValues {
  return { NPI: npi, 'NPI Deactivation Date': date };
}

function placeOf({ address, phone }: SimOrganization): NppesValues {
  return {
    'Provider First Line Business Practice Location Address': address.line1,
    'Provider Second Line Business Practice Location Address': address.line2 ?? '',
    [`${PRACTICE} City Name`]: address.city,
    [`${PRACTICE} State Name`]: address.state,
    [`${PRACTICE} Postal Code`]: address.zip,
    [`${PRACTICE} Country Code (If outside U.S.)`]: 'US',
    [`${PRACTICE} Telephone Number`]: phone,
    'Provider Enumeration Date': '04/05/2012',
    'Last Update Date': '06/09/2026',
    'Certification Date': '06/09/2026',
  };
}

function taxonomyOf(code: string): NppesValues {
  return {
    'Healthcare Provider Taxonomy Code_1': code,
    'Healthcare Provider Primary Taxonomy Switch_1': 'Y',
    'Provider License Number_1': '=========',
  };
}

function otherNameRow({ npi, dba }: SimOrganization): NppesValues[] {
  if (dba === null) return [];
  return [
    {
      NPI: npi,
      'Provider Other Organization Name': dba,
      'Provider Other Organization Name Type Code': '3',
    },
  ];
}

/** Every seventh ordinary provider also works at the practice next in the list. */
function locationRow(npi: string, index: number): NppesValues[] {
  const own = personOf(npi).organization;
  const other = SAMPLE_ORGANIZATIONS[(SAMPLE_ORGANIZATIONS.indexOf(own) + 1) % SAMPLE_ORGANIZATIONS.length];
  if (index % 7 !== 0 || !npi.startsWith('21') || other === undefined) return [];
  return [
    {
      NPI: npi,
      [`${SECONDARY}- Address Line 1`]: other.address.line1,
      [`${SECONDARY}-  Address Line 2`]: other.address.line2 ?? '',
      [`${SECONDARY} - City Name`]: other.address.city,
      [`${SECONDARY} - State Name`]: other.address.state,
      [`${SECONDARY} - Postal Code`]: other.address.zip,
      [`${SECONDARY} - Telephone Number`]: other.phone,
    },
  ];
}

function endpointRow({ npi, type, use, endpoint, affiliation }: SimEndpoint): NppesValues {
  return {
    NPI: npi,
    'Endpoint Type': type,
    Endpoint: endpoint,
    Affiliation: affiliation === null ? 'N' : 'Y',
    'Affiliation Legal Business Name': affiliation?.name ?? '',
    'Use Code': use,
  };
}

/** Each file, and the one that describes it. What is not ASCII is written as Latin-1, as in some of the real ones. */
function filesOf(days: string, rows: Readonly<Record<MemberKind, readonly NppesValues[]>>): ZipEntry[] {
  return MEMBER_KINDS.flatMap((kind) => {
    const header = headerLine(kind);
    const text = header + rows[kind].map((row) => rowLine(kind, row)).join('');
    const name = `${kind}_pfile_${days}`;
    return [
      { name: `${name}.csv`, content: Buffer.from(text, 'latin1') },
      { name: `${name}_fileheader.csv`, content: Buffer.from(header) },
    ];
  });
}

/** As it was called before 2025. */
function withOldColumnName({ name, content }: ZipEntry): ZipEntry {
  const text = content.toString('latin1').replace('"Provider Sex Code"', '"Provider Gender Code"');
  return { name, content: Buffer.from(text, 'latin1') };
}

/** The header of a file as CMS writes it. */
export function headerLine(kind: MemberKind): string {
  return line(LAYOUT[kind]);
}

/**
 * A row as CMS writes it: every value quoted, a quote within it written as an apostrophe.
 * @throws {RangeError} for a column that the layout does not have
 */
export function rowLine(kind: MemberKind, values: NppesValues): string {
  const cells = new Array<string>(LAYOUT[kind].length).fill('');
  for (const [name, value] of Object.entries(values)) {
    const place = LAYOUT[kind].indexOf(name);
    if (place < 0) throw new RangeError(`${kind} has no column ${name}`);
    cells[place] = value.replaceAll('"', "'");
  }
  return line(cells);
}

function line(cells: readonly string[]): string {
  return `"${cells.join('","')}"\n`;
}

/** A file to pack. */
export interface ZipEntry {
  readonly name: string;
  readonly content: Buffer;
}

/** The first day that the format knows: the same content gives the same file. */
const PACKED_AT = { mtime: new Date(1980, 0, 1), forceDosTimestamp: true };

/** Writes a zip of files that fit into memory. */
export async function writeZip(path: string, entries: readonly ZipEntry[]): Promise<void> {
  const zip = new ZipFile();
  for (const { name, content } of entries) zip.addBuffer(content, name, PACKED_AT);
  zip.end();
  await pipeline(zip.outputStream, createWriteStream(path));
}
