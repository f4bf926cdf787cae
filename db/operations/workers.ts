import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { and, count, desc, eq, isNull, not, sql } from 'drizzle-orm';
import { type Database, isAhead, query, run } from '../connection/client.ts';
import { clockTime } from '../schema/columns.ts';
import { workers } from '../schema.ts';

// Records which worker and API processes are running. All times are from PostgreSQL's clock.

/** A running API process. Worker processes have these properties too. */
export interface ApiProcess {
  /** See `newProcessId`. */
  readonly id: string;
  readonly namespace: string;
  /** The configured name of the Temporal task queue. The default is `enrichment`. */
  readonly taskQueue: string;
}

export interface WorkerProcess extends ApiProcess {
  /** The build id of its workflows, or `NO_BUILD`. API processes run no workflows. */
  readonly buildId: string;
}

/**
 * The build of a worker that has not joined Temporal yet. Such a worker refunds overdue requests,
 * and does no other work.
 */
export const NO_BUILD = 'none';

/**
 * Returns an id for this process, like `4711@web-1/9f86d081`. It begins as Temporal identifies the
 * pollers of a task queue. The random part distinguishes containers that restart with the same id.
 */
export function newProcessId(): string {
  return `${process.pid}@${hostname()}/${randomBytes(4).toString('hex')}`;
}

/**
 * Tests whether a process runs: it was not stopped, and its last heartbeat is less than 45 s old. A
 * process that misses three heartbeats is considered dead.
 */
const LIVE = sql<boolean>`(stopped_at is null and seen_at > clock_timestamp() - interval '45 seconds')`;
/** How long the row of a dead process is kept. */
const KEPT = sql`interval '10 minutes'`;
const IS_WORKER = eq(workers.kind, 'worker');
/** The build id, which only APIs lack. */
const BUILD_ID = sql<string>`build_id`;

/** The interval between two heartbeats of a worker. */
export const HEARTBEAT_MS = 15_000;

/**
 * Stores a worker's heartbeat. Call it every `HEARTBEAT_MS`. It also deletes processes that have
 * sent no heartbeat for 10 minutes, except the newest process of each kind, namespace, and queue. A
 * heartbeat in the future was stored before the clock was set back. It counts as received now, so
 * that its process is dead after 45 s without another one.
 */
export async function noteWorker(
  db: Database,
  { id, namespace, taskQueue, buildId }: WorkerProcess,
): Promise<void> {
  await run(db)`
    with forgotten as (
      delete from workers w
       where greatest(seen_at, stopped_at) < clock_timestamp() - ${KEPT}
         and id <> ${id}
         and exists (
           select from workers newer
            where newer.kind = w.kind and newer.namespace = w.namespace
              and newer.task_queue = w.task_queue and newer.seen_at > w.seen_at)
    ), ahead as (
      update workers set seen_at = clock_timestamp()
       where id <> ${id} and ${isAhead(sql`seen_at`)}
    )
    insert into workers (id, namespace, task_queue, build_id)
    values (${id}, ${namespace}, ${taskQueue}, ${buildId})
        on conflict (id) do update
       set seen_at = clock_timestamp(), build_id = excluded.build_id`;
}

/**
 * Stores an API's heartbeat. Workers delete the rows of dead APIs.
 * @param errors the responses with status 500 that it sent within the last 15 minutes
 */
export async function noteApi(
  db: Database,
  { id, namespace, taskQueue }: ApiProcess,
  errors = 0,
): Promise<void> {
  await query(db, (tx) =>
    tx
      .insert(workers)
      .values({ id, kind: 'api', namespace, taskQueue, errors })
      .onConflictDoUpdate({ target: workers.id, set: { seenAt: clockTime, errors } }),
  );
}

/** Marks a process as stopped. From then on, the functions below do not count it as running. */
export async function noteStopped(db: Database, id: string): Promise<void> {
  await query(db, (tx) =>
    tx.update(workers).set({ stoppedAt: clockTime }).where(eq(workers.id, id)),
  );
}

/**
 * Returns the build ids of a queue's workers, except workers that stopped properly. A build is
 * `live` if one of its workers has a recent heartbeat. It is `silent` if none has, because they
 * were killed or could not reach PostgreSQL.
 */
export async function readBuilds(
  db: Database,
  { namespace, taskQueue }: Pick<WorkerProcess, 'namespace' | 'taskQueue'>,
): Promise<Map<string, 'live' | 'silent'>> {
  const rows = await query(db, (tx) =>
    tx
      .select({ buildId: BUILD_ID, isLive: sql<boolean>`bool_or(${LIVE})` })
      .from(workers)
      .where(
        and(
          IS_WORKER,
          eq(workers.namespace, namespace),
          eq(workers.taskQueue, taskQueue),
          isNull(workers.stoppedAt),
        ),
      )
      .groupBy(workers.buildId),
  );
  return new Map(
    rows.map(({ buildId, isLive }) => [buildId, isLive ? 'live' : 'silent']),
  );
}

/**
 * Lists the versions that have a live worker, with the number of workers. Workers that have not
 * joined Temporal have the version `NO_BUILD`.
 */
export function listVersions(db: Database) {
  const { namespace, taskQueue, buildId } = workers;
  return query(db, (tx) =>
    tx
      .select({ namespace, queue: taskQueue, version: BUILD_ID, workers: count() })
      .from(workers)
      .where(and(IS_WORKER, LIVE))
      .groupBy(namespace, taskQueue, buildId)
      .orderBy(namespace, taskQueue, desc(count())),
  );
}

/**
 * Lists the ids of processes that have sent no heartbeat for 45 s, but did so within the last 10
 * minutes, by kind. They were killed, hang, or cannot reach PostgreSQL.
 */
export function listSilent(db: Database) {
  const { id, kind, stoppedAt } = workers;
  const ids = sql<string[]>`array_agg(${id} order by ${id})`;
  const isRecent = sql`seen_at > clock_timestamp() - ${KEPT}`;
  return query(db, (tx) =>
    tx
      .select({ kind, ids })
      .from(workers)
      .where(and(isNull(stoppedAt), not(LIVE), isRecent))
      .groupBy(kind)
      .orderBy(kind),
  );
}

/**
 * Lists each namespace and queue that live APIs use, with the number of APIs, the responses with
 * status 500 that they sent within the last 15 minutes, and whether a worker was ever seen there.
 */
export function listApis(db: Database) {
  const { namespace, taskQueue } = workers;
  const hasWorker = sql<boolean>`exists (
    select from workers w
     where w.kind = 'worker' and w.namespace = workers.namespace
       and w.task_queue = workers.task_queue)`;
  const errors = sql<number>`sum(errors)::int`;
  return query(db, (tx) =>
    tx
      .select({ namespace, queue: taskQueue, apis: count(), errors, hasWorker })
      .from(workers)
      .where(and(eq(workers.kind, 'api'), LIVE))
      .groupBy(namespace, taskQueue)
      .orderBy(namespace, taskQueue),
  );
}

/**
 * If no worker was ever seen with the given namespace and queue, lists where workers run instead,
 * each as `namespace/queue`. If the list has entries, the settings of the caller or of the workers
 * are wrong. The list is empty if workers were seen there, or if no worker runs yet.
 */
export async function listElsewhere(
  db: Database,
  { namespace, taskQueue }: Pick<WorkerProcess, 'namespace' | 'taskQueue'>,
): Promise<string[]> {
  const place = sql<string>`namespace || '/' || task_queue`.as('place');
  const seenThere = sql`exists (
    select from workers
     where kind = 'worker' and namespace = ${namespace} and task_queue = ${taskQueue})`;
  const rows = await query(db, (tx) =>
    tx
      .selectDistinct({ place })
      .from(workers)
      .where(and(IS_WORKER, LIVE, not(seenThere)))
      .orderBy(place),
  );
  return rows.map((row) => row.place);
}
