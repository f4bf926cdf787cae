import { hostname } from 'node:os';
import { basename } from 'node:path';
import { Readable } from 'node:stream';
import type { ChangedBy } from '../../db/audit.ts';
import { type Database, openDatabase } from '../../db/client.ts';
import { DatabaseError } from '../../db/errors.ts';
import { beginImport, type Counts, type Dataset, endImport, findImport } from '../../db/lookups/imports.ts';
import { importDetails, importProviders, stageDetails } from '../../db/providers/nppes/merge.ts';
import { analyzeProviders, connectForImport, type NppesConnection } from '../../db/providers/nppes/run.ts';
import type { DetailTable } from '../../db/providers/nppes/staging.ts';
import { type CsvRecord, csvReader } from './csv.ts';
import { type FileKind, findClinicianColumns, findColumns, type Header, ImportProblem } from './layout.ts';
import { openProgress, openRejects, type Progress, type ProgressOutput, type RejectsFile } from './output.ts';
import { neededOf, npiOf, type Reject, rowParser } from './rows.ts';
import { type Member, openSource, type Source } from './source.ts';

/** As the command has them; who asks, and why, is for the audit log. */
export interface ImportOptions extends ChangedBy {
  readonly dataset: Dataset;
  readonly databaseUrl: string;
  /** A zip, a folder or a csv file. */
  readonly path: string;
  /** Where rows that are not imported are listed. */
  readonly rejects?: string;
  /** Counts what would change, and writes nothing but that list. */
  readonly dryRun?: boolean;
  /** Imports a file that was imported before. */
  readonly again?: boolean;
  readonly acceptDrift?: boolean;
  readonly output: ProgressOutput;
}

export type ImportResult = Awaited<ReturnType<typeof importDownload>>;

/**
 * Imports a download of CMS: a monthly or weekly one of NPPES, or "Doctors and Clinicians". Every NPI that it names is
 * made what it says; others stay. Killed at any moment and run again, it ends as if nothing had happened.
 * @throws {ImportProblem} if it cannot begin or was stopped
 * @throws {DatabaseError} if it could not begin for the database's sake
 */
export async function importDownload(options: ImportOptions) {
  const { path, dataset, databaseUrl: url } = options;
  const source = await openSource(path, dataset);
  const db = openDatabase({ url, poolSize: 1, applicationName: 'import' });
  try {
    const connection = await connect(url, dataset);
    try {
      return await importSource(connection, db, source, options);
    } finally {
      await connection.close();
    }
  } finally {
    await db.close();
    await source.close();
  }
}

async function connect(databaseUrl: string, dataset: Dataset): Promise<NppesConnection> {
  const opened = await connectForImport(
    databaseUrl,
    `import ${dataset}, process ${process.pid} on ${hostname()}`,
  );
  if ('transaction' in opened) return opened;
  const { name, since, file } = opened;
  throw new ImportProblem(
    `another import is under way (${[name, file, since && `since ${since.toISOString()}`].filter(Boolean).join(', ')}); wait for its end, then run this again`,
  );
}

/** What the files of one import share. */
interface Import {
  readonly connection: NppesConnection;
  readonly dryRun: boolean;
  readonly rejects: RejectsFile;
  readonly progress: Progress;
  /** By file and fate, such as `npidata.inserted`. */
  readonly counts: Record<string, number>;
}

async function importSource(
  connection: NppesConnection,
  db: Database,
  source: Source,
  { dataset, path, rejects: given, dryRun = false, again, acceptDrift = false, output, ...by }: ImportOptions,
) {
  const begun = performance.now();
  const rejectsPath = given ?? `${basename(path)}.${dryRun ? 'dry-run.' : ''}rejects.csv`;
  const { name: file, fingerprint, members } = source;
  // A wrong layout of the last file must not be found after an hour's import of the first.
  const files: { member: Member; header: Header }[] = [];
  for (const member of members) files.push({ member, header: await readHeader(member, acceptDrift) });
  const earlier = dryRun || again ? null : await findImport(db, dataset, fingerprint);
  if (earlier !== null) return result('already', earlier, 0);
  const id = dryRun ? null : await beginImport(db, by, dataset, { name: file, fingerprint });

  const rejects = await openRejects(rejectsPath);
  const progress = openProgress(
    output,
    members.reduce((bytes, { size }) => bytes + size, 0),
  );
  const work: Import = { connection, dryRun, rejects, progress, counts: {} };
  try {
    for (const { member, header } of files) {
      const { kind } = member;
      await (kind === 'npidata'
        ? importMain(work, member, header)
        : importDetail(work, member, header, DETAIL_TABLES[kind]));
    }
    if (id !== null) {
      await analyzeProviders(connection);
      await endImport(db, id, 'done', work.counts);
    }
  } catch (error) {
    // It is only a note: the next run makes it if this one cannot.
    if (id !== null) {
      const noted = endImport(db, id, 'failed', work.counts);
      await noted.then(() => analyzeProviders(connection)).catch(() => {});
    }
    if (!(error instanceof DatabaseError)) throw error;
    const what = error.unavailable ? 'lost PostgreSQL on the way' : 'PostgreSQL refused; its log says why';
    throw new ImportProblem(
      `${what} (${error.code}); run the same command again: what is imported already changes no more`,
    );
  } finally {
    progress.stop();
  }
  const rows = members.reduce((sum, { kind }) => sum + (work.counts[`${kind}.read`] ?? 0), 0);
  return result(dryRun ? 'rehearsed' : 'imported', work.counts, rows);

  /** @param outcome `already`: it was imported before, and nothing was done */
  function result(outcome: 'imported' | 'already' | 'rehearsed', counts: Counts, rows: number) {
    const seconds = (performance.now() - begun) / 1000;
    const rejected = members.some(({ kind }) => (counts[`${kind}.rejected`] ?? 0) > 0);
    const days = members.map(({ asOf }) => asOf).filter((day) => day !== 'infinity');
    return {
      file,
      /** The last day that the files tell of; null if they don't say it. */
      asOf: days.sort().at(-1) ?? null,
      outcome,
      members: members.map(({ kind }) => kind),
      counts,
      /** Null if no row was rejected. */
      rejectsPath: rejected && outcome !== 'already' ? rejectsPath : null,
      seconds,
      rowsPerSecond: Math.round(rows / seconds),
    };
  }
}

/** The main file, chunk by chunk. */
async function importMain(work: Import, member: Member, header: Header): Promise<void> {
  // As the chunk before: a first import goes from new NPI to new NPI.
  let expectsNew = false;
  for await (const chunk of chunksOf(work, member, header)) {
    const rows = chunk.read - chunk.rejects.length;
    const counts = await importProviders(work.connection, {
      asOf: member.asOf,
      copy: chunk.copy,
      rows,
      expectsNew,
      dryRun: work.dryRun,
    });
    expectsNew = counts.inserted === rows;
    told(work, member, chunk, counts);
  }
}

const DETAIL_TABLES: Readonly<Record<Exclude<FileKind, 'npidata'>, DetailTable>> = {
  othername: 'provider_other_names',
  pl: 'provider_locations',
  endpoint: 'provider_endpoints',
  clinicians: 'clinician_practices',
};

/** Another file, wholly: what it does not name any more must go. */
async function importDetail(work: Import, member: Member, header: Header, table: DetailTable): Promise<void> {
  for await (const chunk of chunksOf(work, member, header)) {
    if (!work.dryRun) await stageDetails(work.connection, table, chunk.copy);
    told(work, member, chunk, {});
  }
  if (!work.dryRun) add(work, member, await importDetails(work.connection, table, member.asOf));
}

function told(work: Import, member: Member, chunk: Chunk, counts: Counts): void {
  add(work, member, { read: chunk.read, rejected: chunk.rejects.length, ...counts });
  work.progress.show(member.name, chunk.bytes, chunk.read);
}

function add(work: Import, { kind }: Member, counts: Counts): void {
  for (const [fate, count] of Object.entries(counts)) {
    const name = `${kind}.${fate}`;
    work.counts[name] = (work.counts[name] ?? 0) + count;
  }
}

/** Chunks with their rejects listed, the next one being read while PostgreSQL works on this one. */
async function* chunksOf({ rejects }: Import, member: Member, header: Header): AsyncGenerator<Chunk> {
  const chunks: AsyncIterable<Chunk> = Readable.from(readChunks(member, header), { highWaterMark: 1 });
  for await (const chunk of chunks) {
    await rejects.append(member.name, chunk.rejects);
    yield chunk;
  }
}

/** Rows of a file that are imported together, wholly or not at all. */
export interface Chunk {
  /** In COPY's text format. */
  readonly copy: readonly Buffer[];
  /** Rows read, rejected ones among them. */
  readonly read: number;
  readonly rejects: readonly Reject[];
  /** Of the file, as it is outside the zip. */
  readonly bytes: number;
}

/** Large enough that a transaction costs nothing per row, small enough to hold three of them in memory. */
export const CHUNK_ROWS = 20_000;
const BUFFER_BYTES = 524_288;

/**
 * Finds the columns of a file.
 * @throws {ImportProblem} for another layout, and for a file that cannot be read
 */
export async function readHeader({ name, kind, open }: Member, acceptsDrift: boolean): Promise<Header> {
  const reader = csvReader(null);
  let names: string[] | undefined;
  const onRecord = (record: CsvRecord) => {
    names ??= Array.from({ length: record.columns }, (_, column) => record.text(column));
  };
  for await (const piece of open()) {
    reader.push(piece, onRecord);
    if (names) break;
  }
  reader.end(onRecord);
  return kind === 'clinicians'
    ? findClinicianColumns(name, names ?? [])
    : findColumns(name, kind, names ?? [], neededOf(kind), acceptsDrift);
}

/** Reads the rows of a file. @throws {ImportProblem} if it cannot be read */
export async function* readChunks(member: Member, header: Header): AsyncGenerator<Chunk> {
  const reader = csvReader(header.columns);
  const parse = rowParser(member.kind, member.asOf, header);
  let isHeader = true;
  let copy: Buffer[] = [];
  let buffer = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  let used = 0;
  let read = 0;
  let bytes = 0;
  let rejects: Reject[] = [];
  for await (const piece of member.open()) {
    bytes += piece.length;
    reader.push(piece, onRecord);
    if (read >= CHUNK_ROWS) yield close();
  }
  reader.end(onRecord);
  yield close();

  function onRecord(record: CsvRecord): void {
    if (isHeader) {
      isHeader = false;
      return;
    }
    read += 1;
    const row = parse(record);
    if (typeof row === 'string') {
      // A character takes three bytes at most.
      if (row.length * 3 > buffer.length - used) flush(Math.max(BUFFER_BYTES, row.length * 3));
      // Written at once: rows kept as strings until the end of a chunk would outlive the young generation.
      used += buffer.write(row, used);
    } else {
      rejects.push({ line: record.line, npi: npiOf(record, header), reason: row.reason });
    }
  }

  function close(): Chunk {
    flush(BUFFER_BYTES);
    const closed = { copy, read, rejects, bytes };
    copy = [];
    rejects = [];
    read = 0;
    bytes = 0;
    return closed;
  }

  function flush(size: number): void {
    if (used > 0) copy.push(buffer.subarray(0, used));
    buffer = Buffer.allocUnsafeSlow(size);
    used = 0;
  }
}
