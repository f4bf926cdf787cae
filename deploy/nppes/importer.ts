import { hostname } from 'node:os';
import { basename } from 'node:path';
import { Readable } from 'node:stream';
import { type Database, openDatabase } from '../../db/connection/client.ts';
import { DatabaseError } from '../../db/connection/errors.ts';
import {
  beginImport,
  type Counts,
  type Dataset,
  endImport,
  findImport,
} from '../../db/lookups/imports.ts';
import type { ChangedBy } from '../../db/operations/audit.ts';
import {
  countRemovals,
  hasRows,
  importDetails,
  importProviders,
  stageDetails,
} from '../../db/providers/nppes/merge.ts';
import {
  analyzeProviders,
  connectForImport,
  type NppesConnection,
} from '../../db/providers/nppes/run.ts';
import type { DetailTable } from '../../db/providers/nppes/staging.ts';
import { type Chunk, readChunks, readHeader } from './chunks.ts';
import { type FileKind, type Header, ImportProblem, requireOther } from './layout.ts';
import {
  openProgress,
  openRejects,
  type Progress,
  type ProgressOutput,
  type RejectsFile,
} from './output.ts';
import { type Member, openSource } from './source.ts';

/** The options of the import commands. `actor` and `reason` are for the audit log. */
export interface ImportOptions extends ChangedBy {
  readonly dataset: Dataset;
  readonly databaseUrl: string;
  /** Path of the download: a zip, a folder, or a CSV file. */
  readonly path: string;
  /** Path of the file that lists the rejected rows. */
  readonly rejects?: string;
  /**
   * If true, the import only counts what would change. Writes nothing except the file with the
   * rejected rows.
   */
  readonly dryRun?: boolean;
  /** Imports the download even if it was imported before. */
  readonly again?: boolean;
  /** Imports the download even if that removes more than 5 % of a table. */
  readonly yes?: boolean;
  readonly output: ProgressOutput;
}

export type ImportResult = Awaited<ReturnType<typeof importDownload>>;

/**
 * Imports a download from CMS: a monthly or weekly NPPES download, or "Doctors and Clinicians".
 * Each NPI in the download gets its values, and all other NPIs stay as they are. The import can be
 * killed at any moment. Running it again completes it.
 * @throws {OperatorProblem} if the import cannot begin, is interrupted, or would remove too many
 * rows. In the last case, nothing was changed
 * @throws {DatabaseError} if PostgreSQL fails before the import begins
 */
export async function importDownload(options: ImportOptions) {
  const { dataset, databaseUrl: url, path, dryRun = false, again = false } = options;
  await using opened = new AsyncDisposableStack();
  const source = opened.adopt(await openSource(path, dataset), ({ close }) => close());
  const db = openDatabase({ url, poolSize: 1, applicationName: 'import' });
  opened.defer(() => db.close());
  const name = `import ${dataset}, process ${process.pid} on ${hostname()}`;
  const connection = opened.adopt(await connectForImport(url, name), (one) =>
    one.close(),
  );
  const begun = performance.now();
  const { name: file, fingerprint, members } = source;
  // Reads the headers of all files first, so that a wrong layout is found at once, and not an hour
  // later at the last file.
  const files: ReadableFile[] = [];
  for (const member of members) {
    files.push({ member, header: await readHeader(member) });
  }
  const rejectsPath = options.rejects ?? defaultRejectsPath(path, dryRun);
  const earlier = dryRun || again ? null : await findImport(db, dataset, fingerprint);
  const counts: Record<string, number> = { ...earlier };
  if (earlier === null) {
    await requireOther(path, rejectsPath);
    const rejects = await openRejects(rejectsPath);
    const bytes = members.reduce((sum, { size }) => sum + size, 0);
    const progress = openProgress(options.output, bytes);
    const shared = { connection, fingerprint, rejects, progress, counts };
    if (dryRun) await rehearse(shared, files);
    else await importRecorded(db, shared, files, options, file);
  }
  const kinds = members.map(({ kind }) => kind);
  const days = members.map(({ asOf }) => asOf).filter((day) => day !== 'infinity');
  const seconds = (performance.now() - begun) / 1000;
  const rows = sumOf(counts, kinds, 'read');
  return {
    file,
    /** The last day that the files cover, or null if their names do not contain it. */
    asOf: days.sort().at(-1) ?? null,
    /** `already` means that the download was imported before, so nothing was done. */
    outcome: outcomeOf(earlier !== null, dryRun),
    members: kinds,
    counts,
    /** Null if no row was rejected. */
    rejectsPath:
      earlier === null && sumOf(counts, kinds, 'rejected') > 0 ? rejectsPath : null,
    seconds,
    rowsPerSecond: earlier === null ? Math.round(rows / seconds) : 0,
  };
}

/** Returns the path of the rejects file, in the current folder. */
function defaultRejectsPath(path: string, dryRun: boolean): string {
  const name = basename(path);
  if (dryRun) return `${name}.dry-run.rejects.csv`;
  return `${name}.rejects.csv`;
}

function outcomeOf(
  isKnown: boolean,
  dryRun: boolean,
): 'already' | 'rehearsed' | 'imported' {
  if (isKnown) return 'already';
  if (dryRun) return 'rehearsed';
  return 'imported';
}

/** Returns the number of rows with an outcome, such as `read`, in all files. */
function sumOf(counts: Counts, kinds: readonly FileKind[], fate: string): number {
  return kinds.reduce((sum, kind) => sum + (counts[`${kind}.${fate}`] ?? 0), 0);
}

type Shared = Omit<Import, 'importNumber'>;

/** Counts what an import would change. @throws {ImportProblem} if PostgreSQL fails */
async function rehearse(shared: Shared, files: readonly ReadableFile[]): Promise<void> {
  try {
    await importFiles({ ...shared, importNumber: null }, files, false);
  } catch (error) {
    throw problemOf(error);
  }
}

/**
 * Imports the files, and records in `import_runs` when the import begins and how it ends.
 * @throws {ImportProblem} if PostgreSQL fails, or the import would remove too much
 */
async function importRecorded(
  db: Database,
  shared: Shared,
  files: readonly ReadableFile[],
  options: ImportOptions,
  name: string,
): Promise<void> {
  const { connection, fingerprint, counts } = shared;
  const { id, number } = await beginImport(db, options, options.dataset, {
    name,
    fingerprint,
  });
  try {
    await importFiles({ ...shared, importNumber: number }, files, options.yes ?? false);
    await analyzeProviders(connection);
    await endImport(db, id, 'done', counts);
  } catch (error) {
    // If recording the failure fails too, the next run of the command marks this import as failed.
    const noted = endImport(db, id, 'failed', counts);
    await noted.then(() => analyzeProviders(connection)).catch(() => {});
    throw problemOf(error);
  }
}

/**
 * Converts an error of PostgreSQL to a message for the operator. Returns any other error unchanged.
 */
function problemOf(error: unknown): unknown {
  if (!(error instanceof DatabaseError)) return error;
  let problem = 'PostgreSQL rejected the import; its log says why';
  if (error.unavailable) problem = 'lost the connection to PostgreSQL';
  return new ImportProblem(
    `${problem} (${error.code}); run the same command again, which continues where it stopped`,
  );
}

/** The parameters that all files of one import share. */
interface Import {
  readonly connection: NppesConnection;
  /** Hash that identifies the download, as stored in `import_runs`. */
  readonly fingerprint: string;
  /**
   * The number of the import, which is stored in the rows that it writes. Null for a dry run, which
   * writes no rows.
   */
  readonly importNumber: number | null;
  readonly rejects: RejectsFile;
  readonly progress: Progress;
  /** Number of rows by file and outcome, such as `npidata.inserted`. */
  readonly counts: Record<string, number>;
}

/**
 * The table for each kind of file except the main file, `npidata`. A file with a table here is
 * imported as a whole, because rows that it no longer contains must be removed from the table. The
 * main file is imported in chunks.
 */
const DETAIL_TABLES: Readonly<Record<FileKind, DetailTable | null>> = {
  npidata: null,
  othername: 'provider_other_names',
  pl: 'provider_locations',
  endpoint: 'provider_endpoints',
  clinicians: 'clinician_practices',
};

/** A file whose header has been read. */
interface ReadableFile {
  readonly member: Member;
  readonly header: Header;
}

/** An import that would remove more than this share of a table needs `--yes`. */
const MAX_REMOVED_SHARE = 0.05;

/**
 * Imports the files of a download. First counts how many rows would be removed, and writes nothing
 * if there are too many.
 */
async function importFiles(
  work: Import,
  files: readonly ReadableFile[],
  mayRemove: boolean,
): Promise<void> {
  const { connection, fingerprint, importNumber } = work;
  const mains = files.filter(({ member }) => DETAIL_TABLES[member.kind] === null);
  const details: DetailFile[] = [];
  for (const file of files) {
    const { kind, asOf } = file.member;
    const table = DETAIL_TABLES[kind];
    if (table === null) continue;
    details.push({ kind, table, asOf, fingerprint });
    await stage(work, file, table);
  }
  // To count the rows that would be removed, the main file must be read an additional time. A first
  // import skips this, because the tables are empty.
  if (importNumber === null || (await anyHasRows(connection, details))) {
    for (const file of mains) await compareMain(work, file);
  }
  const tooMany = await findRemovals(work, details);
  if (importNumber === null) return;
  if (tooMany.length > 0 && !mayRemove) {
    throw new ImportProblem(
      `this import would remove ${tooMany.join(', and ')}, which is more ` +
        'than 5 %; nothing was changed. If that is right, run it again with --yes',
    );
  }
  for (const file of mains) await importMain(work, file);
  for (const file of details) {
    add(work, file.kind, await importDetails(connection, file, importNumber));
  }
}

interface DetailFile {
  readonly kind: FileKind;
  readonly table: DetailTable;
  readonly asOf: string;
  readonly fingerprint: string;
}

async function stage(
  work: Import,
  file: ReadableFile,
  table: DetailTable,
): Promise<void> {
  await readCounted(work, file, async ({ copy }) => {
    await stageDetails(work.connection, table, copy);
    return {};
  });
}

async function anyHasRows(
  connection: NppesConnection,
  details: readonly DetailFile[],
): Promise<boolean> {
  for (const { table } of details) {
    if (await hasRows(connection, table)) return true;
  }
  return false;
}

/**
 * Counts the rows that the import would remove. In a dry run, also adds them to the counts.
 * @returns a text for each table that would lose too many rows, with the number of rows
 */
async function findRemovals(
  work: Import,
  details: readonly DetailFile[],
): Promise<string[]> {
  const tooMany: string[] = [];
  for (const file of details) {
    const { removed, total } = await countRemovals(work.connection, file);
    const isTooMany = removed > total * MAX_REMOVED_SHARE;
    if (isTooMany) {
      tooMany.push(`${removed} of ${total} rows of ${file.table}`);
    }
    if (work.importNumber === null) add(work, file.kind, { removed });
  }
  return tooMany;
}

/** Records which NPIs the main file would change. In a dry run, also counts them. */
async function compareMain(work: Import, file: ReadableFile): Promise<void> {
  const { asOf } = file.member;
  const compare = ({ copy, read, rejected }: Chunk) => {
    const rows = read - rejected.length;
    return importProviders(work.connection, {
      asOf,
      copy,
      rows,
      expectsNew: false,
      dryRun: true,
    });
  };
  if (work.importNumber === null) {
    await readCounted(work, file, compare);
    return;
  }
  for await (const chunk of chunksOf(work, file)) {
    await compare(chunk);
    work.progress(file.member.name, chunk.bytes, chunk.read);
  }
}

async function importMain(work: Import, file: ReadableFile): Promise<void> {
  const { asOf } = file.member;
  // If all NPIs of a chunk were new, the next chunk is also expected to have only new NPIs. This is
  // always so in a first import.
  let expectsNew = false;
  await readCounted(work, file, async ({ copy, read, rejected }) => {
    const rows = read - rejected.length;
    const chunk = { asOf, copy, rows, expectsNew, dryRun: false };
    const fates = await importProviders(work.connection, chunk);
    expectsNew = fates.inserted === rows;
    return fates;
  });
}

/**
 * Reads a file in chunks. Writes rejected rows to the rejects file, passes the other rows to
 * `handle`, and counts the outcomes.
 */
async function readCounted(
  work: Import,
  file: ReadableFile,
  handle: (chunk: Chunk) => Promise<Counts>,
): Promise<void> {
  const { name, kind } = file.member;
  for await (const chunk of chunksOf(work, file)) {
    await work.rejects.append(name, chunk.rejected);
    const fates = await handle(chunk);
    add(work, kind, { read: chunk.read, rejected: chunk.rejected.length });
    add(work, kind, fates);
    work.progress(name, chunk.bytes, chunk.read);
  }
}

/**
 * Returns the chunks of a file. The next chunk is read while PostgreSQL works on the current one.
 */
function chunksOf(
  { importNumber }: Import,
  { member, header }: ReadableFile,
): AsyncIterable<Chunk> {
  return Readable.from(readChunks(member, header, importNumber), { highWaterMark: 1 });
}

function add({ counts }: Import, kind: FileKind, fates: Counts): void {
  for (const [fate, count] of Object.entries(fates)) {
    const name = `${kind}.${fate}`;
    counts[name] = (counts[name] ?? 0) + count;
  }
}
