import { and, eq, isNull, lt, min, type SQL, sql } from 'drizzle-orm';
import { type Database, isAhead, query, run, span } from '../connection/client.ts';
import { batches, requests } from '../schema.ts';

// The queries of the sweep, a periodic job that settles overdue requests and restarts missing
// workflows. The outbox consists of the batches whose workflow was never started. Their
// `started_at` is null. Until their turn comes, their `admitted_at` is null, too.

/** The input to start a batch workflow. It contains no personal data. */
export interface BatchStart
  extends Readonly<
    Pick<typeof batches.$inferSelect, 'organizationId' | 'submittedAs' | 'requestedType'>
  > {
  readonly batchId: string;
  readonly npis: readonly string[];
}

/** The columns of a `BatchStart`, of `batches`. */
const BATCH_START = sql`
  id as "batchId",
  organization_id as "organizationId",
  submitted_as as "submittedAs",
  requested_type as "requestedType",
  array(select npi from requests where batch_id = batches.id order by position) as npis`;

/**
 * Claims the turn to settle overdue requests, if the next turn is due. Only one process gets the
 * turn in each interval. A process in another Temporal namespace than the API's gets the turn only
 * if the turn is overdue by a whole interval. So such a process takes over only if no process in
 * the API's namespace sweeps.
 * @returns null if the process did not get the turn. `isHome` is true if the process is in the
 * API's namespace
 */
export async function claimTurn(
  db: Database,
  everyMs: number,
  namespace: string,
): Promise<{ readonly isHome: boolean } | null> {
  const isHome = sql`coalesce(s.namespace = ${namespace}, true)`;
  const every = span(everyMs);
  const [taken = null] = await run<{ isHome: boolean }>(db)`
    insert into sweeps as s (due_at) values (clock_timestamp() + ${every})
        on conflict (one) do update set due_at = excluded.due_at
     -- A due time that is more than two intervals ahead is ignored. It was written before the clock
     -- was set back or the interval was shortened.
     where s.due_at not between clock_timestamp() - case when ${isHome} then 0 else 1 end * ${every}
           and clock_timestamp() + 2 * ${every}
    returning ${isHome} as "isHome"`;
  return taken;
}

/**
 * Claims the turn to start and restart workflows, if the next turn is due. Only one process gets
 * the turn in each interval.
 * @returns null if the process did not get the turn, for example because the API uses another
 * namespace
 */
export async function claimWorkflowTurn(
  db: Database,
  everyMs: number,
  namespace: string,
): Promise<true | null> {
  const every = span(everyMs);
  const taken = await run(db)`
    update sweeps
       set workflows_due_at = clock_timestamp() + ${every}
     where coalesce(namespace = ${namespace}, true)
       -- Ignores a due time that is too far ahead, as claimTurn does.
       and workflows_due_at not between clock_timestamp() and clock_timestamp() + 2 * ${every}
    returning one`;
  return taken.length > 0 ? true : null;
}

/**
 * Records the Temporal namespace in which the API starts workflows. A process in another namespace
 * cannot see whether these workflows are running.
 */
export async function noteHome(db: Database, namespace: string): Promise<void> {
  await run(db)`
    insert into sweeps as s (due_at, namespace) values (clock_timestamp(), ${namespace})
        on conflict (one) do update set namespace = excluded.namespace
     where s.namespace is distinct from excluded.namespace`;
}

/** Records that a sweep finished. */
export async function noteSweep(db: Database): Promise<void> {
  await run(db)`update sweeps set swept_at = clock_timestamp()`;
}

/** Records that the batch workflow was started, which removes the batch from the outbox. */
export async function markStarted(db: Database, batchId: string): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(batches)
      .set({ startedAt: sql`clock_timestamp()` })
      .where(and(eq(batches.id, batchId), isNull(batches.startedAt))),
  );
}

/**
 * A bulk waits while this many earlier requests of its organization are not planned. So workers always
 * have requests of it to plan, but never many.
 */
const MOST_UNPLANNED = 30;
/** The same for bulks of a test key, which are tests and need not be fast. */
const MOST_UNPLANNED_OF_SANDBOX = 1;

/**
 * Tests whether a bulk must wait because of the earlier requests of its organization. A batch keeps it
 * waiting while that batch waits, too, and for a minute after its admission. After that its workflow
 * may be stuck, which must not stop the whole organization.
 * @param before the time of the bulk's submit, or later if it has no requests yet
 */
export function mustWait(organizationId: SQL, before: SQL): SQL {
  return sql`exists (
    select from requests r join batches earlier on earlier.id = r.batch_id
     where r.organization_id = ${organizationId}
       and r.status = 'accepted'
       and r.accepted_at < ${before}
       and coalesce(
             earlier.admitted_at between clock_timestamp() - interval '1 minute'
                                     and clock_timestamp(), true)
    offset case when is_sandbox(${organizationId}) then ${MOST_UNPLANNED_OF_SANDBOX - 1}::int
                else ${MOST_UNPLANNED - 1}::int end)`;
}

/**
 * Admits the waiting bulks that no earlier batches keep waiting.
 *
 * It is one statement that locks the row of `sweeps`, so only one process at a time admits. It skips
 * batches that are being settled, because waiting for them could deadlock. In another Temporal
 * namespace than the API's, it admits nothing.
 */
export async function admitWaiting(
  db: Database,
  namespace: string,
  limit: number,
): Promise<BatchStart[]> {
  return await run<BatchStart>(db)`
    with turn as materialized (
      select from sweeps
       where coalesce(namespace = ${namespace}, true)
         and exists (select from batches where admitted_at is null)
         for update skip locked
    )
    update batches set admitted_at = clock_timestamp()
     where id in (
       select id
         from batches b
        where admitted_at is null
          and exists (select from turn)
          and not ${mustWait(sql`b.organization_id`, sql`b.created_at`)}
        order by created_at
        limit ${limit}
          for update skip locked)
    returning ${BATCH_START}`;
}

/**
 * Lists the batches in the outbox that were admitted more than `olderThanMs` ago. The process that
 * admitted them may still be starting the workflows of younger batches. The oldest batch of each
 * organization comes first, then the second-oldest of each organization, and so on.
 */
export async function listToStart(
  db: Database,
  olderThanMs: number,
  limit: number,
): Promise<BatchStart[]> {
  return await run<BatchStart>(db)`
    select ${BATCH_START}
      from (
        select *, row_number() over (partition by organization_id order by created_at) as place
          from batches
         where started_at is null
           and (admitted_at < clock_timestamp() - ${span(olderThanMs)}
                or ${isAhead(sql`admitted_at`)})
         order by place, created_at
         limit ${limit}
      ) batches
     order by place, created_at`;
}

/** Lists the organizations with an open request past its deadline, the longest overdue first. */
export async function listOverdueOwners(db: Database): Promise<string[]> {
  const rows = await query(db, (tx) =>
    tx
      .select({ organizationId: requests.organizationId })
      .from(requests)
      .where(and(isNull(requests.settledAt), lt(requests.deadlineAt, sql`now()`)))
      .groupBy(requests.organizationId)
      .orderBy(min(requests.deadlineAt)),
  );
  return rows.map(({ organizationId }) => organizationId);
}

/**
 * Claims batches in progress whose workflows were not checked within the last `everyMs`, and marks
 * them as checked, so that concurrent sweeps do not check the same batches. A check in the future was
 * made before the clock was set back, and does not count.
 */
export async function claimUnfinished(
  db: Database,
  everyMs: number,
  limit: number,
): Promise<BatchStart[]> {
  return await run<BatchStart>(db)`
    update batches set checked_at = clock_timestamp()
     where id in (
       select id
         from batches
        where started_at is not null
          and (coalesce(checked_at, started_at) < now() - ${span(everyMs)}
               or ${isAhead(sql`coalesce(checked_at, started_at)`)})
          and status = 'in-progress'
        order by coalesce(checked_at, started_at)
        limit ${limit}
          for update skip locked)
    returning ${BATCH_START}`;
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
