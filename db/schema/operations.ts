import { sql } from 'drizzle-orm';
import { boolean, check, pgTable, text } from 'drizzle-orm/pg-core';
import { clockTime, time } from './columns.ts';

/**
 * The heartbeats of workers and APIs. APIs, the doctor, and other workers see which workers
 * Temporal can reach, and operators see missing processes.
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
  },
  () => [
    check('workers_kind_check', sql`kind in ('worker', 'api')`),
    check('workers_check', sql`(kind = 'worker') = (build_id is not null)`),
  ],
);

/**
 * The sweep is two loops in every worker process. This row grants each turn to one process per
 * interval. The first turn to settle inserts it.
 */
export const sweeps = pgTable(
  'sweeps',
  {
    one: boolean('one').primaryKey().default(true),
    /** The time when the next sweep settles overdue requests. */
    dueAt: time('due_at').notNull(),
    /**
     * The time when the next sweep starts and restarts workflows. It is a separate loop, so that
     * refunds never wait for Temporal.
     */
    workflowsDueAt: time('workflows_due_at').notNull().default(sql`'-infinity'`),
    /** The time when a sweep last settled all overdue requests. */
    sweptAt: time('swept_at'),
    /**
     * The namespace in which the API starts workflows. A worker in another namespace cannot see
     * whether they run.
     */
    namespace: text('namespace'),
  },
  () => [check('sweeps_one_check', sql`one`)],
);
