import { hostname } from 'node:os';
import type { ChangedBy } from '../../db/audit.ts';
import { DatabaseError } from '../../db/errors.ts';
import { connectForImport, type NppesConnection } from '../../db/providers/nppes/connection.ts';
import {
  type Counts,
  failRun,
  finishRun,
  type NppesRun,
  openRun,
  REHEARSAL,
} from '../../db/providers/nppes/runs.ts';
import { readHeader } from './chunks.ts';
import { type Import, importMember } from './members.ts';
import { ImportProblem } from './problem.ts';
import { openProgress, type ProgressOutput } from './progress.ts';
import { openRejects } from './rejects.ts';
import { openSource, type Source } from './source.ts';

export interface ImportOptions {
  readonly databaseUrl: string;
  /** For the audit log. */
  readonly by: ChangedBy;
  /** A zip, a folder or a csv file. */
  readonly path: string;
  readonly rejectsPath: string;
  /** True to count what would change and to write nothing but the rejects file. */
  readonly dryRun: boolean;
  /** True to import a file that was imported before. */
  readonly again: boolean;
  readonly acceptsDrift: boolean;
  readonly output: ProgressOutput;
  /** Rows of a transaction. */
  readonly chunkRows: number;
}

export interface ImportResult {
  readonly file: string;
  /** The last day that the files tell of. */
  readonly asOf: string;
  /** `already`: it was imported before, and nothing was done. */
  readonly outcome: 'imported' | 'resumed' | 'already' | 'rehearsed';
  readonly members: readonly string[];
  readonly counts: Counts;
  /** Null where no row was rejected. */
  readonly rejectsPath: string | null;
  readonly seconds: number;
  readonly rowsPerSecond: number;
}

/**
 * Imports a monthly or weekly download of NPPES. Every NPI that it names is made what it says; others stay. Killed
 * at any moment, the next run of the same file goes on at the last chunk that was committed.
 * @throws {ImportProblem} where it cannot begin or was stopped
 * @throws {DatabaseError} where it could not begin for the database's sake
 */
export async function importNppes(options: ImportOptions): Promise<ImportResult> {
  const source = await openSource(options.path);
  try {
    const connection = await connect(options.databaseUrl);
    try {
      return await importSource(connection, source, options);
    } finally {
      await connection.close();
    }
  } finally {
    await source.close();
  }
}

async function connect(databaseUrl: string): Promise<NppesConnection> {
  const opened = await connectForImport(databaseUrl, `import nppes, process ${process.pid} on ${hostname()}`);
  if ('transaction' in opened) return opened;
  const { name, since, file } = opened;
  throw new ImportProblem(
    `another import is under way (${[name, file, `since ${since.toISOString()}`].filter(Boolean).join(', ')}); wait for its end, then run this again`,
  );
}

async function importSource(
  connection: NppesConnection,
  source: Source,
  options: ImportOptions,
): Promise<ImportResult> {
  const begun = performance.now();
  const { name: file, fingerprint, members } = source;
  // A wrong layout of the last file must not be found after an hour's import of the first.
  for (const member of members) await readHeader(member, options.acceptsDrift);
  const toDo = options.dryRun
    ? { kind: 'rehearse' as const, run: REHEARSAL }
    : await openRun(connection, options.by, { file, fingerprint, again: options.again });
  if (toDo.kind === 'done') return result('already', toDo.counts, 0);

  const { checkpoint } = toDo.run;
  const rejects = await openRejects(options.rejectsPath, checkpoint?.rejects ?? 0);
  const total = members.reduce((bytes, member) => bytes + member.size, 0);
  const current = members.findIndex(({ name }) => name === checkpoint?.member);
  const done = members.slice(0, Math.max(0, current)).reduce((bytes, member) => bytes + member.size, 0);
  const progress = openProgress(options.output, total, done + (checkpoint?.offset ?? 0));
  const { acceptsDrift, chunkRows } = options;
  const work: Import = { connection, rejects, progress, acceptsDrift, chunkRows, bytesBefore: done, rows: 0 };
  let run = toDo.run;
  try {
    for (const member of members.slice(Math.max(0, current))) {
      run = await importMember(work, member, run);
      work.bytesBefore += member.size;
    }
    await finishRun(connection, run);
  } catch (error) {
    throw await stopped(connection, run, error);
  } finally {
    progress.stop();
  }
  return result(OUTCOMES[toDo.kind], run.counts, work.rows);

  function result(outcome: ImportResult['outcome'], counts: Counts, rows: number): ImportResult {
    const seconds = (performance.now() - begun) / 1000;
    const rejected = members.some(({ kind }) => (counts[`${kind}.rejected`] ?? 0) > 0);
    return {
      file,
      asOf:
        members
          .map(({ asOf }) => asOf)
          .sort()
          .at(-1) ?? '',
      outcome,
      members: members.map(({ kind }) => kind),
      counts,
      rejectsPath: rejected && outcome !== 'already' ? options.rejectsPath : null,
      seconds,
      rowsPerSecond: Math.round(rows / seconds),
    };
  }
}

const OUTCOMES = { begin: 'imported', resume: 'resumed', rehearse: 'rehearsed' } as const;

/** What is told of an import that did not come to its end. */
async function stopped(connection: NppesConnection, run: NppesRun, error: unknown): Promise<unknown> {
  const goesOn = 'run the same command again, and the import goes on where it stopped';
  if (error instanceof DatabaseError) {
    if (error.code === 'import_overtaken') {
      return new ImportProblem(
        'another process imports the same file and has come further; nothing was done twice',
      );
    }
    const what = error.unavailable ? 'lost PostgreSQL on the way' : 'PostgreSQL refused; its log says why';
    return new ImportProblem(`${what} (${error.code}); ${goesOn}`);
  }
  // It is only a note: without it the run goes on just the same.
  await failRun(connection, run).catch(() => {});
  return error;
}
