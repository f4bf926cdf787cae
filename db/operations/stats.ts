import { and, asc, count, desc, eq, isNull, lt, or, type SQL, sql } from 'drizzle-orm';
import {
  type Database,
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

/**
 * Reads the values of the gauges that deploy/metrics.md lists. The query reads only open requests,
 * pending deliveries, and one balance per organization. It never scans final requests, because
 * there may be a billion. Each large table has an index for it. A connection may keep a plan from
 * when the tables were small, but only until autovacuum analyzes them, within about a minute.
 * @throws {DatabaseError} within 3 s if the server is busy
 */
export async function readStats(
  db: Database,
  { sources, webhookScheduleMs }: StatsRules,
): Promise<Stat[]> {
  return await transaction(db, async (tx) => {
    await tx.execute(sql`select set_config('statement_timeout', '3s', true)`);
    return await run<Stat>(tx)`
      with moment as (select clock_timestamp() as at),
      open as materialized (
        select organization_id, status, accepted_at, deadline_at
          from requests
         where settled_at is null
         order by deadline_at
         limit ${MAX_COUNTED}
      ), owners as (
        select organization_id,
               count(*) filter (where status = 'in-progress') as open,
               count(*) filter (where status = 'accepted') as waiting,
               min(accepted_at) filter (where status = 'accepted') as waiting_since,
               row_number() over (order by count(*) desc, organization_id) <= 10 as is_large
          from open
         group by organization_id
      ), shown as (
        select organization,
               sum(open) as open,
               sum(waiting) as waiting,
               coalesce(extract(epoch from at - min(waiting_since)), 0) as longest_wait
          from moment, (
            select 'other', 0, 0, null
            union all
            select case when is_large then organization_id else 'other' end,
                   open, waiting, waiting_since
              from owners) o (organization, open, waiting, waiting_since)
         group by organization, at
      ), sources as (
        select s.*, ${BREAKER} as breaker,
               (select coalesce(sum(credits), 0)
                  from source_spend p
                 where p.source = s.source and day = (at at time zone 'UTC')::date) as used
          from moment, jsonb_array_elements(${JSON.stringify(sources)}::jsonb) one
         cross join lateral (
           select one->>0 as kind, one->>1 as source, (one->>2)::numeric as daily) s
          left join source_health h using (source)
      ), pending as materialized (
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
      ), away as (
        select organization_id,
               count(*) as hosts,
               row_number() over (order by count(*) desc, organization_id) <= 10 as is_shown
          from webhook_hosts
         where ${isAway(webhookScheduleMs)}
         group by organization_id
      ), balances as (
        select sum(available) as available, sum(held) as held, sum(used) as used
          from credit_balances
         where not is_sandbox(organization_id)
      ), stats (name, labels, value) as (
        select 'npe_requests_open', jsonb_build_object('state', state), count(organization_id)
          from (values ('accepted'), ('in_progress')) known (state)
          left join open on replace(status, '-', '_') = state
         group by state
        union all
        select 'npe_lookups_open', jsonb_build_object('organization', organization), open
          from shown
        union all
        select 'npe_lookups_waiting', jsonb_build_object('organization', organization), waiting
          from shown
        union all
        select 'npe_lookup_oldest_wait_seconds',
               jsonb_build_object('organization', organization),
               longest_wait
          from shown
        union all
        select 'npe_source_breaker',
               jsonb_build_object('kind', kind, 'source', source, 'state', x),
               (x = breaker)::int
          from sources, unnest(array['closed', 'half_open', 'idle', 'open']) x
        union all
        select 'npe_source_waiting', jsonb_build_object('source', source),
               (select count(*) from source_slots w where w.source = sources.source)
          from sources
        union all
        select 'npe_source_budget_credits',
               jsonb_build_object('source', source, 'what', what),
               credits
          from sources, lateral (values ('limit', daily), ('used', used)) w (what, credits)
         where credits is not null
        union all
        select 'npe_hosts_failing', jsonb_build_object('organization', organization), sum(hosts)
          from (
            select 'other', 0
            union all
            select case when is_shown then organization_id else 'other' end, hosts
              from away) a (organization, hosts)
         group by organization
        union all
        select 'npe_credits_balance', jsonb_build_object('what', what), coalesce(credits, 0)
          from balances, lateral (values
                 ('available', available),
                 ('held', held),
                 ('used', used)) w (what, credits)
        union all
        select name, '{}', value
          from moment, lateral (values
            ('npe_request_overdue_seconds', greatest(0,
              extract(epoch from at - (select min(deadline_at) from open)))),
            ('npe_sweep_age_seconds', coalesce(
              extract(epoch from at - (select swept_at from sweeps)), 'infinity')),
            ('npe_outbox_batches', (
              select count(*)
                from (select from batches where started_at is null limit ${MAX_COUNTED}) o)),
            ('npe_outbox_overdue_seconds', coalesce(greatest(0,
              extract(epoch from at - (
                select min(coalesce(admitted_at, deadline_at))
                  from batches
                 where started_at is null))), 0)),
            ('npe_organizations_low', (
              select count(*)
                from credit_balances left join used_credits on ${USED_BEFORE}
               where ${IS_LOW})),
            ('npe_deliveries_pending', (
              select count(*)
                from (select from webhook_deliveries
                       where state = 'pending' limit ${MAX_COUNTED}) d)),
            ('npe_delivery_overdue_seconds', greatest(0,
              extract(epoch from moment.at - (select min(at) from due))))) one (name, value)
      )
      select name, labels, value::float8 as value
        from stats
       order by name, labels`;
  });
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
