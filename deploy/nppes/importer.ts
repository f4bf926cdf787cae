import { hostname } from 'node:os';
import { basename } from 'node:path';
import { Readable } from 'node:stream';
import type { ChangedBy } from '../../db/audit.ts';
import { type Database, openDatabase } from '../../db/client.ts';
import { DatabaseError } from '../../db/errors.ts';
import {
  beginImport,
  type Counts,
  type Dataset,
  endImport,
  findImport,
} from '../../db/lookups/imports.ts';
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
import { CsvReader, type CsvRecord } from './csv.ts';
import { type FileKind, findColumns, type Header, ImportProblem, requireOther } from './layout.ts';
import {
  openProgress,
  openRejects,
  type Progress,
  type ProgressOutput,
  type RejectsFile,
} from './output.ts';
import { type Reject, rowParser } from './rows.ts';
import { type Member, openSource } from './source.ts';

/** The options of the command. Actor and reason are for the audit log. */
export interface ImportOptions extends ChangedBy {
  readonly dataset: Dataset;
  readonly databaseUrl: string;
  /** A zip, a folder or a csv file. */
  readonly path: string;
  /** The file for rejected rows. */
  readonly rejects?: string;
  /** Counts what would change. Writes only the file of rejected rows. */
  readonly dryRun?: boolean;
  /** Imports a file that was imported before. */
  readonly again?: boolean;
  /** Imports a file that removes more than 5 % of a table. */
  readonly yes?: boolean;
  readonly output: ProgressOutput;
}

export type ImportResult = Awaited<ReturnType<typeof importDownload>>;

/**
 * Imports a download of CMS: a monthly or weekly one of NPPES, or "Doctors and Clinicians". Each
 * NPI in it gets the values of the download, and other NPIs stay as they are. If the process is
 * killed at any moment and run again, the result is the same.
 * @throws {OperatorProblem} if the import cannot begin, was stopped, or would remove too much. In
 * the last case nothing was changed
 * @throws {DatabaseError} if the database kept it from beginning
 */
export async function importDownload(options: ImportOptions) {
  const { dataset, databaseUrl: url, path, dryRun = false, again = false } = options;
  await using opened = new AsyncDisposableStack();
  const source = opened.adopt(await openSource(path, dataset), ({ close }) => close());
  const db = openDatabase({ url, poolSize: 1, applicationName: 'import' });
  opened.defer(() => db.close());
  const name = `import ${dataset}, process ${process.pid} on ${hostname()}`;
  const connection = opened.adopt(await connectForImport(url, name), (one) => one.close());
  const begun = performance.now();
  const { name: file, fingerprint, members } = source;
  // Reads all headers first, so that a wrong layout of the last file is not found an hour later.
  const files: ReadableFile[] = [];
  for (const member of members) files.push({ member, header: await readHeader(member) });
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
    /** The last day that the files cover, or null if they don't say it. */
    asOf: days.sort().at(-1) ?? null,
    /** `already`: the file was imported before, so nothing was done. */
    outcome: outcomeOf(earlier !== null, dryRun),
    members: kinds,
    counts,
    /** Null if no row was rejected. */
    rejectsPath: earlier === null && sumOf(counts, kinds, 'rejected') > 0 ? rejectsPath : null,
    seconds,
    rowsPerSecond: earlier === null ? Math.round(rows / seconds) : 0,
  };
}

/** Returns the path of the rejects file, in the current folder. */
function defaultRejectsPath(path: string, dryRun: boolean): string {
  const name = basename(path);
  return dryRun ? `${name}.dry-run.rejects.csv` : `${name}.rejects.csv`;
}

function outcomeOf(isKnown: boolean, dryRun: boolean): 'already' | 'rehearsed' | 'imported' {
  if (isKnown) return 'already';
  return dryRun ? 'rehearsed' : 'imported';
}

/** Adds up the rows with an outcome, such as `read`, in all files. */
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
 * Imports files, and records the import and its end.
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
  const { id, number } = await beginImport(db, options, options.dataset, { name, fingerprint });
  try {
    await importFiles({ ...shared, importNumber: number }, files, options.yes ?? false);
    await analyzeProviders(connection);
    await endImport(db, id, 'done', counts);
  } catch (error) {
    // A failure here is ignored, because the next run notes the failed import.
    const noted = endImport(db, id, 'failed', counts);
    await noted.then(() => analyzeProviders(connection)).catch(() => {});
    throw problemOf(error);
  }
}

/** Returns the error for the operator if PostgreSQL failed, and other errors unchanged. */
function problemOf(error: unknown): unknown {
  if (!(error instanceof DatabaseError)) return error;
  const problem = error.unavailable
    ? 'lost the connection to PostgreSQL'
    : 'PostgreSQL rejected the import; its log says why';
  return new ImportProblem(
    `${problem} (${error.code}); run the same command again, which continues where it stopped`,
  );
}

/** The data that the files of one import share. */
interface Import {
  readonly connection: NppesConnection;
  /** Identifies the download, as in `import_runs`. */
  readonly fingerprint: string;
  /** Stored in the rows that are written. Null for a dry run, which writes no rows. */
  readonly importNumber: number | null;
  readonly rejects: RejectsFile;
  readonly progress: Progress;
  /** By file and outcome of a row, such as `npidata.inserted`. */
  readonly counts: Record<string, number>;
}

/**
 * The main file is imported in chunks. The other files are imported as a whole, because rows that
 * they no longer contain have to be removed.
 */
const DETAIL_TABLES: Readonly<Record<FileKind, DetailTable | null>> = {
  npidata: null,
  othername: 'provider_other_names',
  pl: 'provider_locations',
  endpoint: 'provider_endpoints',
  clinicians: 'clinician_practices',
};

/** A file with known columns. */
interface ReadableFile {
  readonly member: Member;
  readonly header: Header;
}

/** Removing more than this share of a table needs the operator's consent. */
const MAX_REMOVED_SHARE = 0.05;

/**
 * Imports the files of a download. Writes nothing before it knows how many rows would be removed.
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
  // The main file is read twice only if there is something to remove. A first import has nothing.
  if (importNumber === null || (await anyHasRows(connection, details))) {
    for (const file of mains) await compareMain(work, file);
  }
  const tooMany = await findRemovals(work, details);
  if (importNumber === null) return;
  if (tooMany.length > 0 && !mayRemove) {
    throw new ImportProblem(
      `this import would remove ${tooMany.join(', and ')}, which is more than 5 %; nothing was changed. If that is right, run it again with --yes`,
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

async function stage(work: Import, file: ReadableFile, table: DetailTable): Promise<void> {
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
 * Counts the rows that would be removed. A dry run adds them to its counts.
 * @returns the tables that would lose too many rows, each with the number of rows
 */
async function findRemovals(work: Import, details: readonly DetailFile[]): Promise<string[]> {
  const tooMany: string[] = [];
  for (const file of details) {
    const { removed, total } = await countRemovals(work.connection, file);
    const isTooMany = removed > total * MAX_REMOVED_SHARE;
    if (isTooMany) tooMany.push(`${removed} of ${total} rows of ${file.table}`);
    if (work.importNumber === null) add(work, file.kind, { removed });
  }
  return tooMany;
}

/** Notes the NPIs that a main file would change. A dry run also counts them. */
async function compareMain(work: Import, file: ReadableFile): Promise<void> {
  const { asOf } = file.member;
  const compare = ({ copy, read, rejected }: Chunk) => {
    const rows = read - rejected.length;
    return importProviders(work.connection, { asOf, copy, rows, expectsNew: false, dryRun: true });
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
  // Predicts a chunk from the one before: in a first import every NPI is new.
  let expectsNew = false;
  await readCounted(work, file, async ({ copy, read, rejected }) => {
    const rows = read - rejected.length;
    const chunk = { asOf, copy, rows, expectsNew, dryRun: false };
    const fates = await importProviders(work.connection, chunk);
    expectsNew = fates.inserted === rows;
    return fates;
  });
}

/** Reads a file in chunks, lists rejected rows, and counts the outcome of the others. */
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

/** Reads the next chunk while PostgreSQL works on this one. */
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

/** Rows of a file that are imported in one transaction. */
type Chunk = Readonly<ReturnType<typeof emptyChunk>>;

const emptyChunk = () => ({
  /** The rows in COPY's text format. */
  copy: [] as Buffer[],
  /** Rows that were read, including rejected ones. */
  read: 0,
  rejected: [] as Reject[],
  /** Bytes of the unpacked file. */
  bytes: 0,
});

/**
 * Large enough to make the cost of a transaction per row negligible, small enough to hold three
 * chunks in memory.
 */
export const CHUNK_ROWS = 20_000;
const BUFFER_BYTES = 524_288;

/**
 * Finds the columns of a file.
 * @throws {ImportProblem} for another layout, or if the file cannot be read
 */
export async function readHeader({ name, kind, open }: Member): Promise<Header> {
  const reader = new CsvReader(null);
  const rows: string[][] = [];
  const onRecord = (record: CsvRecord) => {
    if (rows.length > 0) return;
    rows.push(Array.from({ length: record.columns }, (_, column) => record.text(column)));
  };
  for await (const piece of open()) {
    reader.push(piece, onRecord);
    if (rows.length > 0) break;
  }
  reader.end(onRecord);
  const [names = []] = rows;
  return findColumns(name, kind, names);
}

/** Collects the rows of a file in chunks. */
class ChunkWriter {
  private readonly parse: ReturnType<typeof rowParser>;
  private chunk = emptyChunk();
  private buffer = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  private used = 0;
  private isHeader = true;

  constructor(parse: ReturnType<typeof rowParser>) {
    this.parse = parse;
  }

  get isFull(): boolean {
    return this.chunk.read >= CHUNK_ROWS;
  }

  countBytes(bytes: number): void {
    this.chunk.bytes += bytes;
  }

  /** Adds a row, except the first one of the file. */
  add(record: CsvRecord): void {
    if (this.isHeader) {
      this.isHeader = false;
      return;
    }
    this.chunk.read += 1;
    const row = this.parse(record);
    if (typeof row !== 'string') {
      this.chunk.rejected.push(row);
      return;
    }
    // A character takes three bytes at most.
    const size = row.length * 3;
    if (size > this.buffer.length - this.used) this.startBuffer(Math.max(BUFFER_BYTES, size));
    // Written at once, because strings kept until the end of a chunk would leave V8's young
    // generation and cost more memory.
    this.used += this.buffer.write(row, this.used);
  }

  /** Ends the chunk and begins the next one. */
  close(): Chunk {
    this.startBuffer(BUFFER_BYTES);
    const closed = this.chunk;
    this.chunk = emptyChunk();
    return closed;
  }

  private startBuffer(size: number): void {
    if (this.used > 0) this.chunk.copy.push(this.buffer.subarray(0, this.used));
    this.buffer = Buffer.allocUnsafeSlow(size);
    this.used = 0;
  }
}

/**
 * Reads the rows of a file.
 * @param importNumber stored in the rows of providers; null if no rows are written
 * @throws {ImportProblem} if the file cannot be read
 */
export async function* readChunks(
  member: Member,
  header: Header,
  importNumber: number | null = null,
): AsyncGenerator<Chunk> {
  const reader = new CsvReader(header.columns);
  const writer = new ChunkWriter(rowParser(member.kind, member.asOf, header, importNumber));
  const onRecord = (record: CsvRecord) => writer.add(record);
  for await (const piece of member.open()) {
    writer.countBytes(piece.length);
    reader.push(piece, onRecord);
    if (writer.isFull) yield writer.close();
  }
  reader.end(onRecord);
  yield writer.close();
}
