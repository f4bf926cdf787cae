import { and, eq, isNull, sql } from 'drizzle-orm';
import { type Database, query, run, span } from '../client.ts';
import { batches, requests } from '../schema.ts';
import type { SubmittedAs, WantedType } from '../words.ts';

// What the reconciler asks. The outbox holds the batches whose workflow was never started:
// `started_at` is null.

/** What the start of a batch workflow needs to know. Nothing in it is personal. */
export interface BatchStart {
  readonly batchId: string;
  readonly organizationId: string;
  readonly submittedAs: SubmittedAs;
  readonly wantedType: WantedType;
  readonly npis: readonly string[];
}

/**
 * Takes the turn to settle what is overdue, if it is due: one process of all gets it, once per
 * interval. One in another namespace than the API's stands in where no other process sweeps.
 * @returns whether it is in the API's namespace; null if it is not its turn
 */
export async function takeTurn(
  db: Database,
  everyMs: number,
  namespace: string,
): Promise<{ readonly isHome: boolean } | null> {
  const isHome = sql`coalesce(s.namespace = ${namespace}, true)`;
  const [taken] = await run<{ isHome: boolean }>(db)`
    insert into sweeps as s (due_at) values (clock_timestamp() + ${span(everyMs)})
        on conflict (one) do update set due_at = excluded.due_at
     -- What lies further ahead than two intervals was written before the clock or the interval was set back.
     where s.due_at not between clock_timestamp() - case when ${isHome} then 0 else 1 end * ${span(everyMs)}
           and clock_timestamp() + 2 * ${span(everyMs)}
    returning ${isHome} as "isHome"`;
  return taken ?? null;
}

/**
 * Takes the turn to start and restart workflows, if it is due: one process of all gets it, once per
 * interval.
 * @returns null if it is not its turn, or if the API starts workflows in another namespace
 */
export async function takeWorkflowTurn(
  db: Database,
  everyMs: number,
  namespace: string,
): Promise<true | null> {
  const taken = await run(db)`
    update sweeps set workflows_due_at = clock_timestamp() + ${span(everyMs)}
     where coalesce(namespace = ${namespace}, true)
           -- See takeTurn.
       and workflows_due_at not between clock_timestamp() and clock_timestamp() + 2 * ${span(everyMs)}
    returning one`;
  return taken.length > 0 ? true : null;
}

/**
 * Notes in which namespace the API starts workflows: nobody can say from another one whether they
 * run.
 */
export async function noteHome(db: Database, namespace: string): Promise<void> {
  await run(db)`
    insert into sweeps as s (due_at, namespace) values (clock_timestamp(), ${namespace})
        on conflict (one) do update set namespace = excluded.namespace
     where s.namespace is distinct from excluded.namespace`;
}

/** Notes that a sweep came to its end. */
export async function noteSweep(db: Database): Promise<void> {
  await run(db)`update sweeps set swept_at = clock_timestamp()`;
}

/** Notes that the batch workflow was started, which takes the batch out of the outbox. */
export async function markStarted(db: Database, batchId: string): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(batches)
      .set({ startedAt: sql`clock_timestamp()` })
      .where(and(eq(batches.id, batchId), isNull(batches.startedAt))),
  );
}

/**
 * Lists the outbox: batches that were accepted at least `olderThanMs` ago, the oldest of each
 * organization first. The API is still starting younger ones.
 */
export async function listToStart(
  db: Database,
  olderThanMs: number,
  limit: number,
): Promise<BatchStart[]> {
  return await run<BatchStart>(db)`
    select ${START} from (
      select *, row_number() over (partition by organization_id order by created_at) as place
        from batches where started_at is null and created_at < clock_timestamp() - ${span(olderThanMs)}
       order by place, created_at limit ${limit}
    ) batches order by place, created_at`;
}

/** Organizations with an open request past its deadline, the longest overdue first. */
export async function listOverdueOwners(db: Database): Promise<string[]> {
  const rows = await run<{ id: string }>(db)`
    select organization_id as id from requests where settled_at is null and deadline_at < now()
     group by organization_id order by min(deadline_at)`;
  return rows.map(({ id }) => id);
}

/**
 * Takes started batches with an open request that were not looked at for `everyMs`, and marks them
 * as looked at, so that sweeps share the work.
 */
export async function takeUnfinished(
  db: Database,
  everyMs: number,
  limit: number,
): Promise<BatchStart[]> {
  return await run<BatchStart>(db)`
    update batches set checked_at = clock_timestamp()
     where id in (
       select id from batches
        where started_at is not null and coalesce(checked_at, started_at) < now() - ${span(everyMs)}
          and status = 'in-progress'
        order by coalesce(checked_at, started_at) limit ${limit} for update skip locked)
    returning ${START}`;
}

/** Lists the requests of a batch that are not final. */
export async function listOpen(db: Database, batchId: string) {
  return await query(db, (tx) =>
    tx
      .select({ requestId: requests.id, npi: requests.npi })
      .from(requests)
      .where(and(eq(requests.batchId, batchId), isNull(requests.settledAt))),
  );
}

/** A row of batches as a `BatchStart`. */
const START = sql`
  batches.id as "batchId", organization_id as "organizationId", submitted_as as "submittedAs",
  wanted_type as "wantedType", array(select npi from requests where batch_id = batches.id order by position) as npis`;
