import { hostname } from 'node:os';
import { basename } from 'node:path';
import { Readable } from 'node:stream';
import type { ChangedBy } from '../../db/audit.ts';
import { openDatabase } from '../../db/client.ts';
import { DatabaseError } from '../../db/errors.ts';
import { beginImport, type Counts, type Dataset, endImport, findImport } from '../../db/lookups/imports.ts';
import { importDetails, importProviders, stageDetails } from '../../db/providers/nppes/merge.ts';
import { analyzeProviders, connectForImport, type NppesConnection } from '../../db/providers/nppes/run.ts';
import type { DetailTable } from '../../db/providers/nppes/staging.ts';
import { type CsvRecord, csvReader } from './csv.ts';
import { type FileKind, findColumns, type Header, ImportProblem, requireOther } from './layout.ts';
import { openProgress, openRejects, type Progress, type ProgressOutput, type RejectsFile } from './output.ts';
import { type Reject, rowParser } from './rows.ts';
import { type Member, openSource } from './source.ts';

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
  readonly output: ProgressOutput;
}

export type ImportResult = Awaited<ReturnType<typeof importDownload>>;

/**
 * Imports a download of CMS: a monthly or weekly one of NPPES, or "Doctors and Clinicians". Every NPI that it names is
 * made what it says; others stay. Killed at any moment and run again, it ends as if nothing had happened.
 * @throws {OperatorProblem} if it cannot begin or was stopped
 * @throws {DatabaseError} if it could not begin for the database's sake
 */
export async function importDownload(options: ImportOptions) {
  const { dataset, databaseUrl: url, path, dryRun = false, again = false } = options;
  await using opened = new AsyncDisposableStack();
  const source = opened.adopt(await openSource(path, dataset), ({ close }) => close());
  const db = opened.adopt(openDatabase({ url, poolSize: 1, applicationName: 'import' }), (one) =>
    one.close(),
  );
  const name = `import ${dataset}, process ${process.pid} on ${hostname()}`;
  const connection = opened.adopt(await connectForImport(url, name), (one) => one.close());
  const begun = performance.now();
  const { name: file, fingerprint, members } = source;
  // A wrong layout of the last file must not be found after an hour's import of the first.
  const files: { member: Member; header: Header }[] = [];
  for (const member of members) files.push({ member, header: await readHeader(member) });
  const rejectsPath = options.rejects ?? `${basename(path)}.${dryRun ? 'dry-run.' : ''}rejects.csv`;
  const earlier = dryRun || again ? null : await findImport(db, dataset, fingerprint);
  const counts: Record<string, number> = { ...earlier };
  if (earlier === null) {
    await requireOther(path, rejectsPath);
    const rejects = await openRejects(rejectsPath);
    const id = dryRun ? null : await beginImport(db, options, dataset, { name: file, fingerprint });
    const bytes = members.reduce((sum, { size }) => sum + size, 0);
    const progress = openProgress(options.output, bytes);
    const work: Import = { connection, dryRun, rejects, progress, counts };
    try {
      for (const { member, header } of files) await importMember(work, member, header);
      if (id !== null) {
        await analyzeProviders(connection);
        await endImport(db, id, 'done', counts);
      }
    } catch (error) {
      // It is only a note: the next run makes it if this one cannot.
      if (id !== null) {
        const noted = endImport(db, id, 'failed', counts);
        await noted.then(() => analyzeProviders(connection)).catch(() => {});
      }
      if (!(error instanceof DatabaseError)) throw error;
      const what = error.unavailable ? 'lost PostgreSQL on the way' : 'PostgreSQL refused; its log says why';
      throw new ImportProblem(
        `${what} (${error.code}); run the same command again: what is imported already changes no more`,
      );
    }
  }
  const kinds = members.map(({ kind }) => kind);
  const sumOf = (fate: string) => kinds.reduce((sum, kind) => sum + (counts[`${kind}.${fate}`] ?? 0), 0);
  const days = members.map(({ asOf }) => asOf).filter((day) => day !== 'infinity');
  const seconds = (performance.now() - begun) / 1000;
  return {
    file,
    /** The last day that the files tell of; null if they don't say it. */
    asOf: days.sort().at(-1) ?? null,
    /** `already`: it was imported before, and nothing was done. */
    outcome: earlier !== null ? 'already' : dryRun ? 'rehearsed' : 'imported',
    members: kinds,
    counts,
    /** Null if no row was rejected. */
    rejectsPath: earlier === null && sumOf('rejected') > 0 ? rejectsPath : null,
    seconds,
    rowsPerSecond: earlier === null ? Math.round(sumOf('read') / seconds) : 0,
  } as const;
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

/** The main file is imported chunk by chunk, the others wholly: what they do not name any more must go. */
const DETAIL_TABLES: Readonly<Record<FileKind, DetailTable | null>> = {
  npidata: null,
  othername: 'provider_other_names',
  pl: 'provider_locations',
  endpoint: 'provider_endpoints',
  clinicians: 'clinician_practices',
};

async function importMember(
  { connection, dryRun, rejects, progress, counts }: Import,
  member: Member,
  header: Header,
): Promise<void> {
  const { name, kind, asOf } = member;
  const table = DETAIL_TABLES[kind];
  const add = (fates: Counts) => {
    for (const [fate, count] of Object.entries(fates)) {
      counts[`${kind}.${fate}`] = (counts[`${kind}.${fate}`] ?? 0) + count;
    }
  };
  // As the chunk before: a first import goes from new NPI to new NPI.
  let expectsNew = false;
  // The next chunk is read while PostgreSQL works on this one.
  const chunks: AsyncIterable<Chunk> = Readable.from(readChunks(member, header), { highWaterMark: 1 });
  for await (const { copy, read, rejected, bytes } of chunks) {
    await rejects.append(name, rejected);
    const rows = read - rejected.length;
    let fates: Counts = {};
    if (table === null) {
      fates = await importProviders(connection, { asOf, copy, rows, expectsNew, dryRun });
      expectsNew = fates.inserted === rows;
    } else if (!dryRun) {
      await stageDetails(connection, table, copy);
    }
    add({ read, rejected: rejected.length, ...fates });
    progress(name, bytes, read);
  }
  if (table !== null && !dryRun) add(await importDetails(connection, table, asOf));
}

/** Rows of a file that are imported together, wholly or not at all. */
type Chunk = Readonly<ReturnType<typeof emptyChunk>>;

const emptyChunk = () => ({
  /** In COPY's text format. */
  copy: [] as Buffer[],
  /** Rows read, rejected ones among them. */
  read: 0,
  rejected: [] as Reject[],
  /** Of the file, as it is outside the zip. */
  bytes: 0,
});

/** Large enough that a transaction costs nothing per row, small enough to hold three of them in memory. */
export const CHUNK_ROWS = 20_000;
const BUFFER_BYTES = 524_288;

/**
 * Finds the columns of a file.
 * @throws {ImportProblem} for another layout, and for a file that cannot be read
 */
export async function readHeader({ name, kind, open }: Member): Promise<Header> {
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
  return findColumns(name, kind, names ?? []);
}

/** Reads the rows of a file. @throws {ImportProblem} if it cannot be read */
export async function* readChunks(member: Member, header: Header): AsyncGenerator<Chunk> {
  const reader = csvReader(header.columns);
  const parse = rowParser(member.kind, member.asOf, header);
  let isHeader = true;
  let chunk = emptyChunk();
  let buffer = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  let used = 0;
  for await (const piece of member.open()) {
    chunk.bytes += piece.length;
    reader.push(piece, onRecord);
    if (chunk.read >= CHUNK_ROWS) yield close();
  }
  reader.end(onRecord);
  yield close();

  function onRecord(record: CsvRecord): void {
    if (isHeader) {
      isHeader = false;
      return;
    }
    chunk.read += 1;
    const row = parse(record);
    if (typeof row === 'string') {
      // A character takes three bytes at most.
      if (row.length * 3 > buffer.length - used) flush(Math.max(BUFFER_BYTES, row.length * 3));
      // Written at once: rows kept as strings until the end of a chunk would outlive the young generation.
      used += buffer.write(row, used);
    } else {
      chunk.rejected.push(row);
    }
  }

  function close(): Chunk {
    flush(BUFFER_BYTES);
    const closed = chunk;
    chunk = emptyChunk();
    return closed;
  }

  function flush(size: number): void {
    if (used > 0) chunk.copy.push(buffer.subarray(0, used));
    buffer = Buffer.allocUnsafeSlow(size);
    used = 0;
  }
}
