import { type ChildProcess, spawn } from 'node:child_process';
import { createWriteStream } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { fileURLToPath } from 'node:url';
import type { ExecutionContext } from 'ava';
import postgres, { type Sql } from 'postgres';
import type { Dataset } from '../../db/lookups/imports.ts';
import { hasNpiCheckDigit } from '../../db/providers/npi.ts';
import { headerLine, type NppesValues, rowLine } from '../../deploy/local/sample.ts';
import type { MemberKind } from '../../deploy/nppes/layout.ts';
import { openTestDatabase, temporaryFolder } from './database.ts';
import { operatorOn } from './operator.ts';
import { BARE, type Ended, endWithThisProcess } from './programs.ts';

/**
 * A database and a folder for one test of the importer. Each test has its own, because a database
 * runs one import at a time.
 */
export interface NppesWorld {
  readonly url: string;
  readonly sql: Sql;
  readonly folder: string;
  readonly dataset: Dataset;
  /** Runs `import DATASET PATH …`. Rejected rows are listed in `rejects.csv` of the folder. */
  operator(path: string, ...options: string[]): Promise<Ended>;
  /**
   * Returns the `--json` output of an import.
   * @throws {Error} if its exit code is not 0
   */
  imported(path: string, ...options: string[]): Promise<Imported>;
}

export interface Imported {
  readonly outcome: string;
  readonly as_of: string | null;
  readonly files: Readonly<Record<string, Readonly<Record<string, number>>>>;
  readonly rejects_path: string | null;
}

const COMMAND = fileURLToPath(new URL('../../deploy/operator.ts', import.meta.url));
/** Everything that an import writes, except its time and its number. */
const CONTENT = [
  `select coalesce(md5(string_agg((to_jsonb(p) - 'imported_at' - 'import_number')::text, ',' order by npi)), '') as digest from providers p`,
  ...[
    'provider_endpoints',
    'provider_other_names',
    'provider_locations',
    'clinician_practices',
  ].map(
    (table) =>
      `select coalesce(md5(string_agg(row, ',' order by row)), '') as digest
         from (select (to_jsonb(d) - 'import_number')::text as row from ${table} d) rows`,
  ),
];

export async function openNppesWorld(
  t: ExecutionContext,
  dataset: Dataset = 'nppes',
): Promise<NppesWorld> {
  const database = await openTestDatabase();
  const world = await openWorldAt(t, database.url, dataset);
  t.teardown(() => database.stop());
  return world;
}

/** Opens a world in a database that the test has created. */
export async function openWorldAt(
  t: ExecutionContext,
  url: string,
  dataset: Dataset = 'nppes',
): Promise<NppesWorld> {
  const folder = temporaryFolder(t.teardown);
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  t.teardown(() => sql.end({ timeout: 1 }));
  const command = operatorOn(url);
  const operator = (path: string, ...options: string[]) =>
    command.operator(...argumentsOf({ dataset, folder }, path, options));
  return {
    url,
    sql,
    folder,
    dataset,
    operator,
    async imported(path, ...options) {
      const { code, stdout, stderr } = await operator(path, '--json', ...options);
      if (code !== 0) throw new Error(`the import ended with ${code}: ${stderr}`);
      return JSON.parse(stdout) as Imported;
    },
  };
}

/** Starts the same command as a process that can be killed. */
export function spawnImport(
  world: NppesWorld,
  path: string,
): { readonly child: ChildProcess; readonly ended: Promise<Ended> } {
  const child = spawn(
    process.execPath,
    [COMMAND, ...argumentsOf(world, path, ['--json'])],
    {
      env: { ...BARE, DATABASE_URL: world.url },
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  );
  endWithThisProcess(child);
  const ended = new Promise<Ended>((resolve, reject) => {
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', (text: Buffer) => (stdout += text));
    child.stderr.on('data', (text: Buffer) => (stderr += text));
    child.once('error', reject);
    child.once('close', (code) => resolve({ code, stdout, stderr }));
  });
  return { child, ended };
}

/** Returns a digest of the tables. It is the same for two databases with the same content. */
export async function contentOf(sql: Sql): Promise<string> {
  const digests: string[] = [];
  for (const query of CONTENT) digests.push(String((await sql.unsafe(query))[0]?.digest));
  return digests.join(' ');
}

/**
 * Returns a digest of the row versions. It changes if a row is written again, even with the same
 * values.
 */
export async function versionsOf(sql: Sql): Promise<string> {
  const [row] = await sql`
    select md5(string_agg(v, ',' order by v)) as digest from (
      select xmin || ' ' || xmax || ' ' || npi as v from providers
      union all select xmin || ' ' || xmax || ' ' || npi || endpoint from provider_endpoints
      union all select xmin || ' ' || xmax || ' ' || npi || name from provider_other_names
      union all select xmin || ' ' || xmax || ' ' || npi || line_1 from provider_locations
      union all select xmin || ' ' || xmax || ' ' || npi || address_key from clinician_practices) versions`;
  return String(row?.digest);
}

function argumentsOf(
  { dataset, folder }: Pick<NppesWorld, 'dataset' | 'folder'>,
  path: string,
  options: readonly string[],
): string[] {
  return ['import', dataset, path, '--rejects', join(folder, 'rejects.csv'), ...options];
}

// Files in the real layout of NPPES with invented people. Their NPIs begin with 2.

/** Every nth row of a large file is an organization or deactivated, as in the real file. */
const EVERY_NTH_ORGANIZATION = 5;
const EVERY_NTH_DEACTIVATED = 30;
const STREETS = [
  'MAIN STREET',
  'N OAK AVE',
  'HOSPITAL DRIVE STE 200',
  '5TH AVENUE',
  'COUNTY ROAD 9',
];
const NAMES = [
  'ABERNETHY',
  'BRIGHTWATER',
  'CASTELLANE',
  "O'DRUMMOND",
  'ESKILDSEN',
  'FAIRWEATHER',
  'GOLDFINCH',
];
/**
 * Spreads consecutive numbers over all NPIs, as in the real file. The number is prime, so that no
 * NPI occurs twice.
 */
const STRIDE = 48_271_003;
const PIECE_ROWS = 1_000;
/** An NPI with a wrong check digit. */
export const WRONG_NPI = '2000000019';

/** Returns the NPI with a valid check digit for a number up to 99,999,999. */
export function npi(n: number): string {
  const stem = 200_000_000 + n;
  for (let digit = 0; digit < 10; digit += 1) {
    if (hasNpiCheckDigit(`${stem}${digit}`)) return `${stem}${digit}`;
  }
  throw new RangeError(`${n} is too large`);
}

/**
 * Returns a file name like those of CMS.
 * @param lastDay `YYYYMMDD`
 */
export function memberName(kind: MemberKind, lastDay: string): string {
  return `${kind}_pfile_20050523-${lastDay}.csv`;
}

/** Writes a small file and returns its path. */
export async function writeMember(
  folder: string,
  kind: MemberKind,
  lastDay: string,
  rows: readonly NppesValues[],
): Promise<string> {
  const path = join(folder, memberName(kind, lastDay));
  await writeFile(
    path,
    headerLine(kind) + rows.map((row) => rowLine(kind, row)).join(''),
  );
  return path;
}

/**
 * Returns a person's row of the main file, with the columns that the importer keeps and some that
 * it ignores.
 */
export function personRow(id: string, values: NppesValues = {}): NppesValues {
  return {
    NPI: id,
    'Entity Type Code': '1',
    'Provider Last Name (Legal Name)': 'THORNBURY',
    'Provider First Name': 'TAMSIN',
    'Provider Credential Text': 'MD',
    'Provider First Line Business Practice Location Address': '12 MAIN STREET',
    'Provider Business Practice Location Address City Name': 'CEDAR VALLEY',
    'Provider Business Practice Location Address State Name': 'CO',
    'Provider Business Practice Location Address Postal Code': '802011234',
    'Provider Business Practice Location Address Telephone Number': '3035550101',
    'Last Update Date': '01/15/2026',
    'Provider Sex Code': 'F',
    'Healthcare Provider Taxonomy Code_1': '207Q00000X',
    'Healthcare Provider Primary Taxonomy Switch_1': 'Y',
    ...values,
  };
}

/** Returns the row of a deactivated NPI. It contains only the date. */
export function deactivatedRow(id: string, date: string): NppesValues {
  return { NPI: id, 'NPI Deactivation Date': date };
}

/**
 * Writes a main file of any size, piece by piece.
 * @param changes other values for some rows, by their number from 0
 */
export async function writeLargeMain(
  path: string,
  rows: number,
  changes: ReadonlyMap<number, NppesValues> = new Map(),
): Promise<void> {
  await pipeline(
    Readable.from(largeMain(rows, changes)),
    createWriteStream(path, { highWaterMark: 4_194_304 }),
  );
}

function* largeMain(
  rows: number,
  changes: ReadonlyMap<number, NppesValues>,
): Generator<Buffer> {
  yield Buffer.from(headerLine('npidata'));
  for (let from = 0; from < rows; from += PIECE_ROWS) {
    let text = '';
    for (let n = from; n < Math.min(rows, from + PIECE_ROWS); n += 1)
      text += rowLine('npidata', { ...largeRow(n), ...changes.get(n) });
    yield Buffer.from(text);
  }
}

/** Returns the NPI of a row of a large file. */
export function largeNpi(n: number): string {
  return npi((n * STRIDE) % 100_000_000);
}

function largeRow(n: number): NppesValues {
  const id = largeNpi(n);
  if (n % EVERY_NTH_DEACTIVATED === EVERY_NTH_DEACTIVATED - 1)
    return deactivatedRow(id, '03/14/2024');
  const address = {
    'Provider First Line Business Practice Location Address': `${(n % 9_000) + 1} ${pick(STREETS, n)}`,
    'Provider Business Practice Location Address City Name': 'CEDAR VALLEY',
    'Provider Business Practice Location Address State Name': 'CO',
    'Provider Business Practice Location Address Postal Code': String(
      800_000_000 + (n % 9_999_999),
    ),
    'Provider Business Practice Location Address Telephone Number': `303555${String(n % 10_000).padStart(4, '0')}`,
    'Provider First Line Business Mailing Address': `PO BOX ${n}`,
    'Provider Business Mailing Address City Name': 'CEDAR VALLEY',
    'Provider Business Mailing Address State Name': 'CO',
    'Provider Business Mailing Address Postal Code': '80201',
    'Provider Business Mailing Address Country Code (If outside U.S.)': 'US',
    'Provider Enumeration Date': '05/23/2005',
    'Last Update Date': `0${(n % 9) + 1}/1${n % 10}/2025`,
    'Healthcare Provider Taxonomy Code_1': '207Q00000X',
    'Provider License Number_1': `A${n}`,
    'Provider License Number State Code_1': 'CO',
    'Healthcare Provider Primary Taxonomy Switch_1': n % 3 === 0 ? 'N' : 'Y',
    'Healthcare Provider Taxonomy Code_2': n % 3 === 0 ? '208D00000X' : '',
    'Healthcare Provider Primary Taxonomy Switch_2': n % 3 === 0 ? 'Y' : '',
    'Other Provider Identifier_1': n % 2 === 0 ? `${n}` : '',
    'Certification Date': '05/11/2023',
  };
  if (n % EVERY_NTH_ORGANIZATION === 0) {
    return {
      NPI: id,
      'Entity Type Code': '2',
      'Employer Identification Number (EIN)': '<UNAVAIL>',
      'Provider Organization Name (Legal Business Name)': `${pick(NAMES, n)} MEDICAL GROUP ${n} LLC`,
      'Authorized Official Last Name': pick(NAMES, n + 1),
      ...address,
    };
  }
  return {
    NPI: id,
    'Entity Type Code': '1',
    'Provider Last Name (Legal Name)': pick(NAMES, n),
    'Provider First Name': pick(NAMES, n + 3),
    'Provider Middle Name': n % 2 === 0 ? 'Q' : '',
    'Provider Credential Text': 'M.D.',
    'Provider Sex Code': 'F',
    'Is Sole Proprietor': 'N',
    ...address,
  };
}

function pick(list: readonly string[], n: number): string {
  return list[n % list.length] ?? '';
}
