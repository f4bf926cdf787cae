import { createWriteStream } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { ZipFile } from 'yazl';
import { importDownload } from '../nppes/importer.ts';
import LAYOUT from '../nppes/layout.json' with { type: 'json' };
import { MEMBER_KINDS, type MemberKind } from '../nppes/layout.ts';
import { DEACTIVATED_NPIS } from './sim/magic.ts';
import {
  personOf,
  SAMPLE_ENDPOINTS,
  SAMPLE_NPIS,
  SAMPLE_ORGANIZATIONS,
  type SimEndpoint,
  type SimOrganization,
  type SimPerson,
} from './sim/people.ts';

// Writes the simulated people and practices in the format of the monthly NPPES download.

/**
 * The values of a row by column name. Only the columns that the importer reads have values. All
 * others are empty.
 */
export type NppesValues = Readonly<Record<string, string>>;

const PRACTICE = 'Provider Business Practice Location Address';

/**
 * Writes the NPPES sample and imports it with the real importer. If the same file was imported
 * before, nothing changes.
 * @throws {ImportProblem} if the import fails
 */
export async function importSample(databaseUrl: string, dir: string): Promise<void> {
  const folder = join(dir, 'nppes');
  await mkdir(folder, { recursive: true });
  const path = await writeSample(folder);
  await importDownload({
    dataset: 'nppes',
    databaseUrl,
    path,
    rejects: `${path}.rejects.csv`,
    actor: 'npm start',
    reason: 'local stack',
    output: { line: () => {} },
  });
}

/**
 * Writes the sample to a zip file. The content is the same each time, so the importer recognizes a
 * file that it has imported before.
 * @param folder an existing folder. A file with the same name is replaced.
 * @returns the path of the file
 */
export async function writeSample(folder: string): Promise<string> {
  const zip = join(folder, 'NPPES_Data_Dissemination_November_2026_V2.zip');
  const inService = SAMPLE_NPIS.filter((npi) => !DEACTIVATED_NPIS.includes(npi));
  const people = inService.map((npi) => personRow(personOf(npi)));
  const organizations = SAMPLE_ORGANIZATIONS.map(organizationRow);
  const deactivated = DEACTIVATED_NPIS.map(deactivatedRow);
  const rows: Record<MemberKind, NppesValues[]> = {
    npidata: [...people, ...organizations, ...deactivated],
    othername: SAMPLE_ORGANIZATIONS.flatMap(otherNameRow),
    pl: [],
    endpoint: SAMPLE_ENDPOINTS.map(endpointRow),
  };
  const files = MEMBER_KINDS.map((kind) => {
    const lines = rows[kind].map((row) => rowLine(kind, row));
    const content = Buffer.from(headerLine(kind) + lines.join(''));
    return { name: `${kind}_pfile_20050523-20261108.csv`, content };
  });
  await writeZip(zip, files);
  return zip;
}

function deactivatedRow(npi: string): NppesValues {
  return { NPI: npi, 'NPI Deactivation Date': '03/14/2024' };
}

function personRow(person: SimPerson): NppesValues {
  const { npi, first, last, middle, credential, taxonomy, organization } = person;
  return {
    NPI: npi,
    'Entity Type Code': '1',
    'Provider Last Name (Legal Name)': last.toUpperCase(),
    'Provider First Name': first.toUpperCase(),
    'Provider Middle Name': middle?.toUpperCase() ?? '',
    'Provider Credential Text': credential,
    ...placeOf(organization, taxonomy),
  };
}

function organizationRow(organization: SimOrganization): NppesValues {
  return {
    NPI: organization.npi,
    'Entity Type Code': '2',
    'Provider Organization Name (Legal Business Name)': organization.name,
    ...placeOf(organization, '261Q00000X'),
  };
}

function placeOf({ address, phone }: SimOrganization, taxonomy: string): NppesValues {
  return {
    'Provider First Line Business Practice Location Address': address.line1,
    'Provider Second Line Business Practice Location Address': address.line2 ?? '',
    [`${PRACTICE} City Name`]: address.city,
    [`${PRACTICE} State Name`]: address.state,
    [`${PRACTICE} Postal Code`]: address.zip,
    [`${PRACTICE} Telephone Number`]: phone,
    'Last Update Date': '06/09/2026',
    'Healthcare Provider Taxonomy Code_1': taxonomy,
    'Healthcare Provider Primary Taxonomy Switch_1': 'Y',
  };
}

function otherNameRow({ npi, dba }: SimOrganization): NppesValues[] {
  if (dba === null) return [];
  const name = {
    'Provider Other Organization Name': dba,
    'Provider Other Organization Name Type Code': '3',
  };
  return [{ NPI: npi, ...name }];
}

function endpointRow({ npi, type, endpoint, affiliation }: SimEndpoint): NppesValues {
  return {
    NPI: npi,
    'Endpoint Type': type,
    Endpoint: endpoint,
    Affiliation: affiliation === null ? 'N' : 'Y',
    'Affiliation Legal Business Name': affiliation?.name ?? '',
  };
}

/** Returns the header line of a CSV file as CMS writes it. */
export function headerLine(kind: MemberKind): string {
  return line(LAYOUT[kind]);
}

/**
 * Returns a CSV line as CMS writes it. Every value is in quotes. A quote inside a value becomes an
 * apostrophe.
 * @throws {RangeError} if a column is not in the layout
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

/**
 * The options for files in the zip. All have the same date, the earliest that the format allows, so
 * that equal content gives an equal zip file.
 */
const PACKED_AT = { mtime: new Date(1980, 0, 1), forceDosTimestamp: true };

/** Writes a zip file from contents in memory. */
export async function writeZip(
  path: string,
  entries: readonly { readonly name: string; readonly content: Buffer }[],
): Promise<void> {
  const zip = new ZipFile();
  for (const { name, content } of entries) {
    zip.addBuffer(content, name, PACKED_AT);
  }
  zip.end();
  await pipeline(zip.outputStream, createWriteStream(path));
}
