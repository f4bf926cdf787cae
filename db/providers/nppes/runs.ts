import type { TransactionSql } from 'postgres';
import type { AuditAction, ChangedBy } from '../../audit.ts';
import { DatabaseError } from '../../errors.ts';
import { newId } from '../../ids.ts';
import type { NppesConnection } from './connection.ts';

/** How far a run has come. The files before `member`, in the order of import, are done. */
export interface Checkpoint {
  readonly member: string;
  /** Bytes of that file, as it is outside the zip, and the number of the line that begins there. */
  readonly offset: number;
  readonly line: number;
  /** Bytes of the rejects file. */
  readonly rejects: number;
}

/** Rows by file and fate, such as `npidata.inserted`. */
export type Counts = Readonly<Record<string, number>>;

export interface NppesRun {
  /** Null for a rehearsal, which writes nothing. */
  readonly id: string | null;
  /** Null at the beginning. */
  readonly checkpoint: Checkpoint | null;
  readonly counts: Counts;
}

/** What a transaction of a run adds to it. */
export interface Step {
  readonly checkpoint: Checkpoint;
  readonly counts: Counts;
}

/** The run that a file needs. */
export type RunToDo =
  | { readonly kind: 'begin' | 'resume'; readonly run: NppesRun }
  | { readonly kind: 'done'; readonly counts: Counts; readonly finishedAt: Date };

/** A run that writes nothing. */
export const REHEARSAL: NppesRun = { id: null, checkpoint: null, counts: {} };

/**
 * Begins a run, or takes up the one of the same file that did not come to its end, and notes in the audit log who wants
 * it.
 * @param again true to begin one although the file was imported before
 * @throws {DatabaseError}
 */
export async function openRun(
  connection: NppesConnection,
  by: ChangedBy,
  source: { readonly file: string; readonly fingerprint: string; readonly again: boolean },
): Promise<RunToDo> {
  const action: AuditAction = 'nppes.import';
  return await connection.transaction(async (tx): Promise<RunToDo> => {
    const record = (id: string) => tx`
      insert into audit_log (actor, action, subject, reason, details)
      values (${by.actor}, ${action}, ${id}, ${by.reason}, ${tx.json({ file: source.file })})`;
    const [last] = await tx<LastRun[]>`
      select id, state, checkpoint, counts, finished_at as "finishedAt" from import_runs
       where kind = 'nppes' and fingerprint = ${source.fingerprint} order by started_at desc limit 1`;
    if (last?.state === 'done' && last.finishedAt && !source.again) {
      return { kind: 'done', counts: last.counts, finishedAt: last.finishedAt };
    }
    if (last && last.state !== 'done') {
      await tx`update import_runs set state = 'running', finished_at = null where id = ${last.id}`;
      await record(last.id);
      const { member, offset = 0, line = 1, rejects = 0 } = last.checkpoint;
      const checkpoint = member === undefined ? null : { member, offset, line, rejects };
      return { kind: 'resume', run: { id: last.id, checkpoint, counts: last.counts } };
    }
    const id = newId('imp');
    await tx`
      insert into import_runs (id, kind, file, fingerprint, state)
      values (${id}, 'nppes', ${source.file}, ${source.fingerprint}, 'running')`;
    await record(id);
    return { kind: 'begin', run: { id, checkpoint: null, counts: {} } };
  });
}

interface LastRun {
  readonly id: string;
  readonly state: 'running' | 'done' | 'failed';
  /** `{}` before the first chunk. */
  readonly checkpoint: Partial<Checkpoint>;
  readonly counts: Counts;
  readonly finishedAt: Date | null;
}

/**
 * Moves a run's checkpoint within the transaction of what it stands for.
 * @param counts what the transaction found beside the step's own counts
 * @throws {DatabaseError} `import_overtaken` where another process has moved it meanwhile
 */
export async function saveStep(
  tx: TransactionSql,
  run: NppesRun,
  step: Step,
  counts: Counts = {},
): Promise<NppesRun> {
  const next = { ...run, checkpoint: step.checkpoint, counts: sum(run.counts, step.counts, counts) };
  if (run.id === null) return next;
  const { count } = await tx`
    update import_runs set checkpoint = ${tx.json({ ...next.checkpoint })}, counts = ${tx.json(next.counts)}
     where id = ${run.id} and state = 'running' and checkpoint = ${tx.json({ ...run.checkpoint })}`;
  if (count !== 1) throw new DatabaseError('import_overtaken');
  return next;
}

/** Marks a run as done, and lets PostgreSQL look at what it has changed. @throws {DatabaseError} */
export async function finishRun(connection: NppesConnection, run: NppesRun): Promise<void> {
  if (run.id === null) return;
  await connection.transaction(async (tx) => {
    await tx`update import_runs set state = 'done', finished_at = clock_timestamp() where id = ${run.id}`;
    await tx`analyze providers, provider_endpoints, provider_other_names, provider_locations`;
  });
}

/** Marks a run as failed; the next one of the file goes on where it stopped all the same. @throws {DatabaseError} */
export async function failRun(connection: NppesConnection, run: NppesRun): Promise<void> {
  if (run.id === null) return;
  await connection.transaction(async (tx) => {
    await tx`update import_runs set state = 'failed', finished_at = clock_timestamp() where id = ${run.id}`;
  });
}

function sum(...all: readonly Counts[]): Counts {
  const total: Record<string, number> = {};
  for (const counts of all) {
    for (const [name, count] of Object.entries(counts)) total[name] = (total[name] ?? 0) + count;
  }
  return total;
}
