import { sql } from 'drizzle-orm';
import { type Database, run } from './client.ts';

// Records which worker and API processes are running. All times are from PostgreSQL's clock.

/** A running API process. Worker processes have these properties too. */
export interface ApiProcess {
  readonly id: string;
  readonly namespace: string;
  /** The configured name of the Temporal task queue. The default is `enrichment`. */
  readonly taskQueue: string;
}

export interface WorkerProcess extends ApiProcess {
  /** The build id of its workflows. API processes have none. */
  readonly buildId: string;
}

/**
 * Tests whether a process runs: it was not stopped, and its last heartbeat is less than 45 s old. A
 * process that misses three heartbeats is considered dead.
 */
const LIVE = sql`(stopped_at is null and seen_at > clock_timestamp() - interval '45 seconds')`;

/**
 * Stores a worker's heartbeat. Call it every 15 s. It also deletes processes that have sent no
 * heartbeat for 10 minutes, except the newest process of each kind, namespace, and queue.
 */
export async function noteWorker(
  db: Database,
  { id, namespace, taskQueue, buildId }: WorkerProcess,
): Promise<void> {
  await run(db)`
    with forgotten as (
      delete from workers w
       where greatest(seen_at, stopped_at) < clock_timestamp() - interval '10 minutes'
         and id <> ${id}
         and exists (
           select from workers newer
            where newer.kind = w.kind and newer.namespace = w.namespace
              and newer.task_queue = w.task_queue and newer.seen_at > w.seen_at)
    )
    insert into workers (id, namespace, task_queue, build_id)
    values (${id}, ${namespace}, ${taskQueue}, ${buildId})
        on conflict (id) do update set seen_at = clock_timestamp()`;
}

/** Stores an API's heartbeat. Workers delete the rows of dead APIs. */
export async function noteApi(
  db: Database,
  { id, namespace, taskQueue }: ApiProcess,
): Promise<void> {
  await run(db)`
    insert into workers (id, kind, namespace, task_queue)
    values (${id}, 'api', ${namespace}, ${taskQueue})
        on conflict (id) do update set seen_at = clock_timestamp()`;
}

/** Marks a process as stopped. From then on, the functions below do not count it as running. */
export async function noteStopped(db: Database, id: string): Promise<void> {
  await run(db)`update workers set stopped_at = clock_timestamp() where id = ${id}`;
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
  const rows = await run<{ build_id: string; live: boolean }>(db)`
    select build_id, bool_or(${LIVE}) as live
      from workers
     where kind = 'worker' and namespace = ${namespace} and task_queue = ${taskQueue}
       and stopped_at is null
     group by build_id`;
  return new Map(rows.map(({ build_id, live }) => [build_id, live ? 'live' : 'silent']));
}

/** Lists the versions that have a live worker, with the number of workers. */
export function listVersions(db: Database) {
  return run<{ namespace: string; queue: string; version: string; workers: number }>(db)`
    select namespace, task_queue as queue, build_id as version, count(*)::int as workers
      from workers
     where kind = 'worker' and ${LIVE}
     group by 1, 2, 3
     order by 1, 2, 4 desc`;
}

/**
 * Lists each namespace and queue that live APIs use, with the number of APIs and whether a worker
 * was ever seen there.
 */
export function listApis(db: Database) {
  return run<{ namespace: string; queue: string; apis: number; has_worker: boolean }>(db)`
    select namespace, task_queue as queue, count(*)::int as apis,
           exists (
             select from workers w
              where w.kind = 'worker' and w.namespace = workers.namespace
                and w.task_queue = workers.task_queue) as has_worker
      from workers
     where kind = 'api' and ${LIVE}
     group by 1, 2
     order by 1, 2`;
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
  const rows = await run<{ place: string }>(db)`
    select distinct namespace || '/' || task_queue as place
      from workers
     where kind = 'worker' and ${LIVE}
       and not exists (
         select from workers
          where kind = 'worker' and namespace = ${namespace} and task_queue = ${taskQueue})
     order by place`;
  return rows.map(({ place }) => place);
}
