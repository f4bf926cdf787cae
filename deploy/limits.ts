import { GRACE_SECONDS } from '../db/doctor/check.ts';
import { DELIVERY_GRACE_SECONDS } from '../db/doctor/work.ts';
import type { StatName } from '../db/operations/metrics.ts';

// The limits of the service's health. `status` reports each stat that is above its limit, and
// deploy/build/alerts.ts renders an alert from each limit.

const DAY_SECONDS = 86_400;

/** How an alert is sent, and what the person who gets it reads. */
interface AlertRule {
  /** Limits that lead to the same action share a name. */
  readonly alert: string;
  /** `page` wakes an engineer, and `ticket` waits for the morning. */
  readonly severity: 'page' | 'ticket';
  /** How long the stat must stay above the limit, as in Prometheus. Null means not at all. */
  readonly lasts: string | null;
  /** The effect that customers notice. */
  readonly impact: string;
  /** The fact that `status` and the alert report. */
  readonly problem: string;
  /** The page in deploy/runbooks/. */
  readonly runbook: string;
}

/** A stat, and its highest normal value. */
interface Limit extends AlertRule {
  readonly stat: StatName;
  readonly max: number;
}

export const LIMITS: readonly Limit[] = [
  {
    stat: 'npe_sweep_age_seconds',
    max: 2 * GRACE_SECONDS,
    alert: 'SweepAway',
    severity: 'page',
    lasts: '1m',
    impact: 'overdue requests are not refunded, and missing workflows are not started',
    problem: 'no sweep for two minutes',
    runbook: 'processes-down.md',
  },
  {
    stat: 'npe_request_overdue_seconds',
    max: GRACE_SECONDS,
    alert: 'RequestsOverdue',
    severity: 'page',
    lasts: '2m',
    impact: 'requests past their deadline have neither a result nor a refund',
    problem: 'a request is overdue',
    runbook: 'stuck-batch.md',
  },
  {
    stat: 'npe_outbox_overdue_seconds',
    max: 2 * GRACE_SECONDS,
    alert: 'TemporalAway',
    severity: 'page',
    lasts: '1m',
    impact: 'submits are accepted but not started, and fail after their deadline',
    problem: 'a batch has waited two minutes for its start in Temporal',
    runbook: 'temporal-down.md',
  },
  {
    stat: 'npe_delivery_overdue_seconds',
    max: DELIVERY_GRACE_SECONDS,
    alert: 'DeliveriesLate',
    severity: 'page',
    lasts: '5m',
    impact: 'webhooks are later than their schedule, while polls return the results',
    problem: 'a webhook delivery is overdue',
    runbook: 'deliveries-late.md',
  },
  {
    stat: 'npe_database_disk_full',
    max: 0,
    alert: 'DatabaseFull',
    severity: 'page',
    lasts: '1m',
    impact: 'submits fail, and results are not stored',
    problem: 'the disk of PostgreSQL is full',
    runbook: 'postgresql-full.md',
  },
  {
    stat: 'npe_database_active_slot_bytes',
    max: 10_000_000_000,
    alert: 'DatabaseFills',
    severity: 'ticket',
    lasts: '15m',
    impact: 'customers notice nothing until the disk is full',
    problem: 'a replication slot keeps more than 10 GB of WAL',
    runbook: 'postgresql-full.md',
  },
  {
    // A standby that restarts leaves less than this behind.
    stat: 'npe_database_inactive_slot_bytes',
    max: 1_000_000_000,
    alert: 'DatabaseFills',
    severity: 'ticket',
    lasts: '15m',
    impact: 'customers notice nothing until the disk is full',
    problem: 'a replication slot that nothing reads keeps more than 1 GB of WAL',
    runbook: 'postgresql-full.md',
  },
  {
    stat: 'npe_database_lock_seconds',
    max: 30,
    alert: 'LockHeld',
    severity: 'page',
    lasts: '30s',
    impact: 'submits or results fail',
    problem: 'a session locks balances, batches, or requests',
    runbook: 'postgresql-slow.md',
  },
  {
    stat: 'npe_database_connections_percent',
    // So a user with 10 connections is above it at the ninth.
    max: 89,
    alert: 'ConnectionsSpent',
    severity: 'ticket',
    lasts: '5m',
    impact: 'customers will get 503',
    problem:
      'PostgreSQL has few connections left for the server, the database, or a user',
    runbook: 'postgresql-slow.md',
  },
  {
    stat: 'npe_database_oldest_transaction_seconds',
    max: 3600,
    alert: 'DeadRows',
    severity: 'ticket',
    lasts: null,
    impact: 'responses become slow, because no dead row is removed',
    problem: 'a transaction has been open for an hour',
    runbook: 'postgresql-slow.md',
  },
  {
    stat: 'npe_database_dead_rows',
    max: 100_000,
    alert: 'DeadRows',
    severity: 'ticket',
    lasts: '1h',
    impact: 'responses become slow',
    problem: 'a table has more than 100,000 dead rows, and more than live ones',
    runbook: 'postgresql-slow.md',
  },
  {
    stat: 'npe_doctor_findings',
    max: 0,
    alert: 'DoctorFindings',
    severity: 'ticket',
    lasts: null,
    impact: 'credits, requests, or deliveries of customers may be wrong',
    problem: 'the last run of "doctor" had findings',
    runbook: 'routines.md',
  },
  {
    stat: 'npe_doctor_age_seconds',
    max: 2 * DAY_SECONDS,
    alert: 'RoutineLate',
    severity: 'ticket',
    lasts: null,
    impact: 'wrong credits or results are not noticed',
    problem: '"doctor" has not run for two days',
    runbook: 'routines.md',
  },
  {
    stat: 'npe_backup_age_seconds',
    max: 2 * DAY_SECONDS,
    alert: 'RoutineLate',
    severity: 'ticket',
    lasts: null,
    impact: 'if PostgreSQL is lost, customers lose more than two days',
    problem: 'no backup was noted for two days',
    runbook: 'routines.md',
  },
  {
    // CMS publishes both files every month.
    stat: 'npe_import_age_seconds',
    max: 45 * DAY_SECONDS,
    alert: 'RoutineLate',
    severity: 'ticket',
    lasts: null,
    impact: 'fewer emails are found',
    problem: 'a file of CMS was last imported 45 days ago',
    runbook: 'routines.md',
  },
];

/** The limit of requests that fail within 15 minutes. */
interface FailureLimit extends AlertRule {
  /** The share of all requests that became final, in percent. */
  readonly maxPercent: number;
  /** Fewer failures are ignored, because in a quiet night they can be all requests. */
  readonly maxCount: number;
}

/** `status` counts the requests in PostgreSQL. The alert adds up the counters of all processes. */
export const FAILING: FailureLimit = {
  maxPercent: 10,
  maxCount: 5,
  alert: 'RequestsFailing',
  severity: 'page',
  lasts: '10m',
  impact: 'customers get no email and a refund',
  problem: 'too many requests of the last 15 minutes failed',
  runbook: 'requests-failing.md',
};
