import { sql } from 'drizzle-orm';
import { boolean, check, integer, pgTable, text } from 'drizzle-orm/pg-core';
import { clockTime, time } from './columns.ts';

/**
 * The heartbeats of worker and API processes. They show which processes are running, in which
 * Temporal namespace and task queue.
 */
export const workers = pgTable(
  'workers',
  {
    id: text('id').primaryKey(),
    kind: text('kind').$type<'worker' | 'api'>().notNull().default('worker'),
    namespace: text('namespace').notNull(),
    taskQueue: text('task_queue').notNull(),
    /** The build of a worker's workflows; null for APIs. */
    buildId: text('build_id'),
    seenAt: time('seen_at').notNull().default(clockTime),
    stoppedAt: time('stopped_at'),
    /** The responses with status 500 that an API sent within the last 15 minutes. */
    errors: integer('errors').notNull().default(0),
  },
  () => [
    check('workers_kind_check', sql`kind in ('worker', 'api')`),
    check('workers_check', sql`(kind = 'worker') = (build_id is not null)`),
  ],
);

/**
 * The state of the sweep, in a single row. The sweep is a pair of loops that run in every worker
 * process. One loop settles overdue requests, and the other one starts and restarts workflows. In
 * each interval, only one process runs a loop: the one that is first to update the loop's due time.
 */
export const sweeps = pgTable(
  'sweeps',
  {
    one: boolean('one').primaryKey().default(true),
    /** The time when the next sweep settles overdue requests. */
    dueAt: time('due_at').notNull(),
    /**
     * The time when the next sweep starts and restarts workflows. The loop for this is separate
     * from the loop that settles, so that overdue requests are refunded even if Temporal is slow or
     * unavailable.
     */
    workflowsDueAt: time('workflows_due_at').notNull().default(sql`'-infinity'`),
    /** The time when a sweep last settled all overdue requests. */
    sweptAt: time('swept_at'),
    /**
     * The Temporal namespace in which the API starts workflows. A worker in another namespace
     * cannot see whether these workflows are running.
     */
    namespace: text('namespace'),
  },
  () => [check('sweeps_one_check', sql`one`)],
);

/**
 * The regular work that operators schedule, with a row for each kind. The migration inserts the
 * rows, so a new database counts as examined and backed up when it was made.
 */
export const routines = pgTable(
  'routines',
  {
    kind: text('kind').$type<'doctor' | 'backup'>().primaryKey(),
    /** The time when the last run ended. */
    endedAt: time('ended_at').notNull().default(clockTime),
    /** The findings of the doctor's last run. It is 0 for a backup. */
    findings: integer('findings').notNull().default(0),
  },
  () => [check('routines_kind_check', sql`kind in ('doctor', 'backup')`)],
);
