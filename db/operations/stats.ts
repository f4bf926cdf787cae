import { and, asc, count, desc, eq, isNull, lt, or, type SQL, sql } from 'drizzle-orm';
import {
  type Database,
  only,
  query,
  run,
  span,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { BREAKER } from '../lookups/source-stats.ts';
import {
  creditBalances,
  organizations,
  requests,
  USUAL_RATE,
  usedCredits,
  webhookHosts,
} from '../schema.ts';
import { longestWaitMs } from '../webhooks/hosts.ts';
import type { StatName } from './metrics.ts';

/** A configured source, and how many credits it may cost us per day. Null means no limit. */
export type ConfiguredSource = readonly [
  kind: 'vendor' | 'verifier' | 'registry' | 'dns',
  source: string,
  dailyCredits: number | null,
];

export interface StatsRules {
  readonly sources: readonly ConfiguredSource[];
  readonly webhookScheduleMs: readonly number[];
}

/** One value of a Prometheus gauge. */
export type Stat = Readonly<{
  name: StatName;
  labels: Readonly<Record<string, string>>;
  value: number;
  /** The session, table, slot, or file that has this value, if there is one. */
  subject?: string | null;
}>;

/** A gauge counts at most this many rows, so that a large backlog does not slow the query. */
const MAX_COUNTED = 100_000;
/**
 * The maximum number of pending deliveries that are read to find the most overdue one. Those that
 * were not checked for the longest time are read first.
 */
const MAX_PENDING = 10_000;

/** Joins balances with the credits that their organizations had used a day ago. */
const USED_BEFORE = sql`used_credits.organization_id = credit_balances.organization_id
  and used_credits.hour = (select min(hour) from used_credits)`;
const USED_TODAY = sql<number>`credit_balances.used - coalesce(used_credits.used, 0)`;
/**
 * Tests whether an organization has fewer credits left than it used within the last day. A closed
 * organization needs no credits.
 */
const IS_LOW = sql`not is_sandbox(credit_balances.organization_id)
  and credit_balances.available < ${USED_TODAY}
  and credit_balances.organization_id not in (
    select id from organizations where closed_at is not null)`;

/**
 * Tests whether a host's breaker is open and deliveries to the host still wait. If the breaker's
 * trial has been due for longer than any delivery waits, no delivery waits for the host, because it
 * would have made the trial. While an organization's webhooks are suspended, no trial is made.
 */
function isAway(webhookScheduleMs: readonly number[]): SQL {
  return sql`open_until > clock_timestamp() - ${span(longestWaitMs(webhookScheduleMs))}
    and organization_id not in (select id from organizations where webhooks_suspended)`;
}

/** All statements of `readStats` together end within this time. */
const PATIENCE_MS = 3000;

/**
 * Reads the values of the gauges that deploy/metrics.md lists. The statements read only open
 * requests, pending deliveries, and one balance per organization. They never scan final requests,
 * because there may be a billion. Each large table has an index for them. A connection may keep a
 * plan from when the tables were small, but only until autovacuum analyzes them, within about a
 * minute.
 * @throws {DatabaseError} within 3 s if the server is busy
 */
export async function readStats(
  db: Database,
  { sources, webhookScheduleMs }: StatsRules,
): Promise<Stat[]> {
  const parts = [
    (tx: Transaction) => readOpenRequests(tx),
    (tx: Transaction) => readOutbox(tx),
    (tx: Transaction) => readSources(tx, sources),
    (tx: Transaction) => readCredits(tx),
    (tx: Transaction) => readLowOrganizations(tx),
    (tx: Transaction) => readDeliveries(tx),
    (tx: Transaction) => readFailingHosts(tx, webhookScheduleMs),
  ];
  const end = performance.now() + PATIENCE_MS;
  return await transaction(db, async (tx) => {
    // All statements see the same moment, so that no request is open without its held credits.
    await run(tx)`set transaction isolation level repeatable read, read only`;
    const stats: Stat[] = [];
    for (const read of parts) {
      const leftMs = Math.max(1, Math.round(end - performance.now()));
      await run(tx)`select set_config('statement_timeout', ${`${leftMs}ms`}, true)`;
      stats.push(...(await read(tx)));
    }
    return stats;
  });
}

interface OpenRequests {
  /** One of the ten organizations with the most open requests, or `other`. */
  readonly organization: string;
  readonly started: number;
  readonly waiting: number;
  readonly waitSeconds: number;
  readonly overdueSeconds: number;
}

async function readOpenRequests(tx: Transaction): Promise<Stat[]> {
  const rows = await run<OpenRequests>(tx)`
    with open as materialized (
      select organization_id, status, accepted_at, deadline_at
        from requests
       where settled_at is null
       order by deadline_at
       limit ${MAX_COUNTED}
    ), owners as (
      select organization_id,
             count(*) filter (where status = 'in-progress') as started,
             count(*) filter (where status = 'accepted') as waiting,
             min(accepted_at) filter (where status = 'accepted') as waiting_since,
             min(deadline_at) as deadline_at,
             row_number() over (order by count(*) desc, organization_id) <= 10 as is_large
        from open
       group by organization_id
      union all
      -- There is always a row for the other organizations.
      select null, 0, 0, null, null, false
    )
    select case when is_large then organization_id else 'other' end as organization,
           sum(started)::float8 as started,
           sum(waiting)::float8 as waiting,
           coalesce(extract(epoch from clock_timestamp() - min(waiting_since)), 0)::float8
             as "waitSeconds",
           greatest(0, extract(epoch from clock_timestamp() - min(deadline_at)))::float8
             as "overdueSeconds"
      from owners
     group by 1
     order by 1`;
  const total = (column: 'started' | 'waiting') =>
    rows.reduce((sum, row) => sum + row[column], 0);
  const overdue = Math.max(...rows.map(({ overdueSeconds }) => overdueSeconds));
  return [
    stat('npe_requests_open', { state: 'accepted' }, total('waiting')),
    stat('npe_requests_open', { state: 'in_progress' }, total('started')),
    stat('npe_request_overdue_seconds', {}, overdue),
    ...rows.flatMap(({ organization, started, waiting, waitSeconds }) => [
      stat('npe_lookups_open', { organization }, started),
      stat('npe_lookups_waiting', { organization }, waiting),
      stat('npe_lookup_oldest_wait_seconds', { organization }, waitSeconds),
    ]),
  ];
}

/** Reads the batches that no workflow has started, and the time since the last sweep. */
async function readOutbox(tx: Transaction): Promise<Stat[]> {
  const rows = await run<Record<'batches' | 'overdueSeconds' | 'sweepAge', number>>(tx)`
    select (select count(*)
              from (select from batches where started_at is null limit ${MAX_COUNTED}) waiting
           ) as batches,
           greatest(0, extract(epoch from clock_timestamp() - (
             select min(coalesce(admitted_at, deadline_at))
               from batches
              where started_at is null)))::float8 as "overdueSeconds",
           coalesce(
             extract(epoch from clock_timestamp() - (select swept_at from sweeps)),
             'infinity')::float8 as "sweepAge"`;
  const { batches, overdueSeconds, sweepAge } = only(rows);
  return [
    stat('npe_outbox_batches', {}, batches),
    stat('npe_outbox_overdue_seconds', {}, overdueSeconds),
    stat('npe_sweep_age_seconds', {}, sweepAge),
  ];
}

interface SourceState {
  readonly kind: string;
  readonly source: string;
  /** The daily budget in credits. Null for no limit. */
  readonly daily: number | null;
  readonly used: number;
  readonly waiting: number;
  readonly breaker: string;
}

async function readSources(
  tx: Transaction,
  configured: StatsRules['sources'],
): Promise<Stat[]> {
  const named = configured.map(([kind, source, daily]) => ({ kind, source, daily }));
  const rows = await run<SourceState>(tx)`
    select s.kind,
           s.source,
           s.daily::float8 as daily,
           (select coalesce(sum(credits), 0)::float8
              from source_spend p
             where p.source = s.source
               and p.day = (clock_timestamp() at time zone 'UTC')::date) as used,
           (select count(*) from source_slots w where w.source = s.source) as waiting,
           ${BREAKER} as breaker
      from jsonb_to_recordset(${JSON.stringify(named)}::jsonb)
             s (kind text, source text, daily numeric)
      left join source_health h using (source)`;
  return rows.flatMap(({ kind, source, daily, used, waiting, breaker }) => {
    const stats = ['closed', 'half_open', 'idle', 'open'].map((state) =>
      stat('npe_source_breaker', { kind, state, source }, Number(state === breaker)),
    );
    stats.push(stat('npe_source_waiting', { source }, waiting));
    stats.push(stat('npe_source_budget_credits', { what: 'used', source }, used));
    if (daily !== null) {
      stats.push(stat('npe_source_budget_credits', { what: 'limit', source }, daily));
    }
    return stats;
  });
}

async function readCredits(tx: Transaction): Promise<Stat[]> {
  const rows = await run<Record<'available' | 'held' | 'used', number>>(tx)`
    select coalesce(sum(available), 0)::float8 as available,
           coalesce(sum(held), 0)::float8 as held,
           coalesce(sum(used), 0)::float8 as used
      from credit_balances
     where not is_sandbox(organization_id)`;
  return Object.entries(only(rows)).map(([what, credits]) =>
    stat('npe_credits_balance', { what }, credits),
  );
}

async function readLowOrganizations(tx: Transaction): Promise<Stat[]> {
  const low = await tx
    .select({ n: count() })
    .from(creditBalances)
    .leftJoin(usedCredits, USED_BEFORE)
    .where(IS_LOW);
  return [stat('npe_organizations_low', {}, only(low).n)];
}

async function readDeliveries(tx: Transaction): Promise<Stat[]> {
  const rows = await run<Record<'pending' | 'overdueSeconds', number>>(tx)`
    with pending as materialized (
      select due_at, request_id, batch_id
        from webhook_deliveries
       -- Skips deliveries that are being sent, that wait in their receiver's queue, or that were
       -- checked within the last minute.
       where state = 'pending'
         and coalesce(leased_until <= clock_timestamp(), true)
         and coalesce(checked_at <= clock_timestamp() - interval '1 minute', true)
       order by greatest(checked_at, due_at, created_at)
       limit ${MAX_PENDING}
    ), due as (
      -- A delivery without a time is due when its request, or its whole batch, became final.
      select due_at as at from pending
      union all
      select settled_at
        from pending join requests on requests.id = request_id
       where due_at is null
      union all
      select updated_at
        from pending join batches on batches.id = pending.batch_id
       where due_at is null and request_id is null and status = 'completed'
    )
    select (select count(*)
              from (select from webhook_deliveries
                     where state = 'pending' limit ${MAX_COUNTED}) d) as pending,
           greatest(0, extract(epoch from clock_timestamp() - (select min(at) from due)))::float8
             as "overdueSeconds"`;
  const { pending, overdueSeconds } = only(rows);
  return [
    stat('npe_deliveries_pending', {}, pending),
    stat('npe_delivery_overdue_seconds', {}, overdueSeconds),
  ];
}

/** Reads the ten organizations with the most failing hosts, and the sum of the others. */
async function readFailingHosts(
  tx: Transaction,
  webhookScheduleMs: readonly number[],
): Promise<Stat[]> {
  const rows = await run<{ organization: string; hosts: number }>(tx)`
    with away as (
      select organization_id,
             count(*) as hosts,
             row_number() over (order by count(*) desc, organization_id) <= 10 as is_large
        from webhook_hosts
       where ${isAway(webhookScheduleMs)}
       group by organization_id
      union all
      select null, 0, false
    )
    select case when is_large then organization_id else 'other' end as organization,
           sum(hosts)::float8 as hosts
      from away
     group by 1
     order by 1`;
  return rows.map(({ organization, hosts }) =>
    stat('npe_hosts_failing', { organization }, hosts),
  );
}

function stat(name: StatName, labels: Stat['labels'], value: number): Stat {
  return { name, labels, value };
}

/** The maximum number of entries in each list of `readConcerns`. */
const MAX_CONCERNS = 5;

/**
 * Lists the outcomes of recent requests, and the worst cases behind the gauges: organizations whose
 * requests wait for a worker, organizations that are nearly out of credits, hosts whose breaker is
 * open, and organizations that an operator has suspended or limited.
 */
export async function readConcerns(db: Database, webhookScheduleMs: readonly number[]) {
  return await query(db, async (tx) => ({
    settledInTheLastQuarterHour: await listSettled(tx),
    waitingToStart: await listWaiting(tx),
    nearlyOutOfCredits: await listNearlyOut(tx),
    webhookHostsAway: await listHostsAway(tx, webhookScheduleMs),
    switchedOff: await listSwitchedOff(tx),
  }));
}

type Reader = Pick<Transaction, 'select'>;

const ORGANIZATION = { organization: organizations.id, name: organizations.name };

function listSettled(tx: Reader) {
  const { status, reason } = requests;
  return tx
    .select({ status, reason, requests: count() })
    .from(requests)
    .where(
      // The index by settlement needs now(), because clock_timestamp() differs from row to row.
      sql`settled_at > now() - interval '15 minutes'
        and not is_sandbox(organization_id)`,
    )
    .groupBy(status, reason)
    .orderBy(desc(count()));
}

function listWaiting(tx: Reader) {
  const longest = sql`min(accepted_at)`;
  return tx
    .select({
      ...ORGANIZATION,
      requests: count(),
      seconds: sql<number>`extract(epoch from clock_timestamp() - ${longest})::int`,
    })
    .from(requests)
    .innerJoin(organizations, eq(organizations.id, requests.organizationId))
    .where(
      // The index of open requests needs the first condition.
      sql`settled_at is null
        and status = 'accepted'
        and accepted_at < clock_timestamp() - interval '1 minute'`,
    )
    .groupBy(organizations.id)
    .orderBy(longest)
    .limit(MAX_CONCERNS);
}

function listNearlyOut(tx: Reader) {
  return tx
    .select({
      ...ORGANIZATION,
      available: creditBalances.available,
      usedToday: USED_TODAY,
    })
    .from(creditBalances)
    .innerJoin(organizations, eq(organizations.id, creditBalances.organizationId))
    .leftJoin(usedCredits, USED_BEFORE)
    .where(IS_LOW)
    .orderBy(sql`available::float8 / (${USED_TODAY})`)
    .limit(MAX_CONCERNS);
}

function listHostsAway(tx: Reader, webhookScheduleMs: readonly number[]) {
  return tx
    .select({
      ...ORGANIZATION,
      host: webhookHosts.host,
      seconds: sql<number>`extract(epoch from clock_timestamp() - failing_since)::int`,
      reason: webhookHosts.lastReason,
    })
    .from(webhookHosts)
    .innerJoin(organizations, eq(organizations.id, webhookHosts.organizationId))
    .where(isAway(webhookScheduleMs))
    .orderBy(asc(webhookHosts.failingSince))
    .limit(MAX_CONCERNS);
}

function listSwitchedOff(tx: Reader) {
  const { suspended, webhooksSuspended, requestsPerMinute } = organizations;
  const isOff = or(suspended, webhooksSuspended, lt(requestsPerMinute, USUAL_RATE));
  return tx
    .select({ ...ORGANIZATION, suspended, webhooksSuspended, requestsPerMinute })
    .from(organizations)
    .where(and(isNull(organizations.sandboxOf), isNull(organizations.closedAt), isOff))
    .orderBy(organizations.id)
    .limit(MAX_CONCERNS);
}

/**
 * Stores how many credits each organization has used so far, but at most once per hour. Deletes
 * entries that are older than a day.
 */
export async function noteUsedCredits(db: Database): Promise<void> {
  await run(db)`
    with forgotten as (
      delete from used_credits where hour < clock_timestamp() - interval '1 day'
    )
    insert into used_credits (hour, organization_id, used)
    select hour, organization_id, used
      from credit_balances, date_trunc('hour', clock_timestamp()) hour
     where not is_sandbox(organization_id)
       and not exists (select from used_credits n where n.hour = hour.hour)
        on conflict do nothing`;
}
