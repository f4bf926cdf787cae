import type { NppesConnection } from '../../db/providers/nppes/connection.ts';
import { clearStagedDetails, importDetails, stageDetails } from '../../db/providers/nppes/details.ts';
import { importProviders } from '../../db/providers/nppes/providers.ts';
import type { NppesRun } from '../../db/providers/nppes/runs.ts';
import type { DetailTable } from '../../db/providers/nppes/staging.ts';
import { BEGINNING, type Chunk, readChunks } from './chunks.ts';
import type { MemberKind } from './layout.ts';
import type { Progress } from './progress.ts';
import type { RejectsFile } from './rejects.ts';
import type { Member } from './source.ts';

/** What the steps of one import shares. */
export interface Import {
  readonly connection: NppesConnection;
  readonly rejects: RejectsFile;
  readonly progress: Progress;
  readonly acceptsDrift: boolean;
  readonly chunkRows: number;
  /** Bytes of the files before the one that is being imported. */
  bytesBefore: number;
  /** Read by this process. */
  rows: number;
}

const DETAIL_TABLES: Readonly<Record<Exclude<MemberKind, 'npidata'>, DetailTable>> = {
  othername: 'provider_other_names',
  pl: 'provider_locations',
  endpoint: 'provider_endpoints',
};

/**
 * Imports a file of the set, from the run's checkpoint on.
 * @returns the run as it is then
 * @throws {ImportProblem} where the file cannot be read
 * @throws {DatabaseError}
 */
export async function importMember(work: Import, member: Member, run: NppesRun): Promise<NppesRun> {
  const { kind } = member;
  return kind === 'npidata'
    ? await importMain(work, member, run)
    : await importDetail(work, member, kind, run);
}

/** The main file, chunk by chunk. */
async function importMain(work: Import, member: Member, begun: NppesRun): Promise<NppesRun> {
  let run = begun;
  // As the chunk before: a first import goes from new NPI to new NPI.
  let expectsNew = false;
  for await (const chunk of chunksOf(work, member, run)) {
    const rows = chunk.read - chunk.rejects.length;
    const { asOf } = member;
    const step = stepOf(work, member, chunk);
    const done = await importProviders(work.connection, run, {
      asOf,
      copy: chunk.copy,
      rows,
      expectsNew,
      step,
    });
    run = done.run;
    expectsNew = done.counts.inserted === rows;
    showProgress(work, member, chunk);
  }
  return run;
}

/** Another file, wholly: what it does not name any more must go. */
async function importDetail(
  work: Import,
  member: Member,
  kind: Exclude<MemberKind, 'npidata'>,
  run: NppesRun,
): Promise<NppesRun> {
  const { connection } = work;
  const table = DETAIL_TABLES[kind];
  // It leaves no checkpoint before its end, where there is nothing left to do.
  if (run.checkpoint?.member === member.name) return run;
  const counts = { [`${kind}.read`]: 0, [`${kind}.rejected`]: 0 };
  await clearStagedDetails(connection, table);
  for await (const chunk of chunksOf(work, member, run)) {
    if (run.id !== null) await stageDetails(connection, table, chunk.copy);
    for (const [name, count] of Object.entries(stepOf(work, member, chunk).counts))
      counts[name] = (counts[name] ?? 0) + count;
    showProgress(work, member, chunk);
  }
  if (run.id === null) return { ...run, counts: { ...run.counts, ...counts } };
  const checkpoint = { member: member.name, offset: member.size, line: 0, rejects: work.rejects.size() };
  return await importDetails(connection, run, {
    kind,
    table,
    asOf: member.asOf,
    step: { checkpoint, counts },
  });
}

/** Chunks from the checkpoint on, the next one being read while PostgreSQL works on this one. */
async function* chunksOf(
  { acceptsDrift, chunkRows, rejects }: Import,
  member: Member,
  run: NppesRun,
): AsyncGenerator<Chunk> {
  const { checkpoint } = run;
  const from = checkpoint?.member === member.name ? checkpoint : BEGINNING;
  if (from.offset >= member.size) return;
  const chunks = readChunks(member, { from, acceptsDrift, chunkRows });
  let ahead = chunks.next();
  try {
    for (;;) {
      const { done, value: chunk } = await ahead;
      if (done) return;
      ahead = chunks.next();
      // It is awaited in the next turn, unless this chunk fails.
      ahead.catch(() => {});
      await rejects.append(member.name, chunk.rejects);
      yield chunk;
    }
  } finally {
    await chunks.return(undefined);
  }
}

function stepOf(work: Import, member: Member, chunk: Chunk) {
  return {
    checkpoint: { member: member.name, ...chunk.next, rejects: work.rejects.size() },
    counts: { [`${member.kind}.read`]: chunk.read, [`${member.kind}.rejected`]: chunk.rejects.length },
  };
}

function showProgress(work: Import, member: Member, chunk: Chunk): void {
  work.rows += chunk.read;
  work.progress.show(member.name, work.bytesBefore + chunk.next.offset, work.rows);
}
