import { sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, only, run, span, type Transaction, transaction } from '../client.ts';
import type { AttemptReason } from '../words.ts';

// Limits for sending to hosts, per organization and host. They are stored in the database, so that
// they apply across workers:
// - The number of concurrent attempts to a host. It is lower until the host has accepted a
//   delivery. A limit for all organizations together keeps them from flooding a host through us.
// - The number of attempts that an address gets from hosts that have not accepted any delivery.
// - A circuit breaker. While it is open, one attempt at a time tests whether the host is back. The
//   first and the last attempt of a delivery are owed and may run as soon as no other trial runs.
//   Only one of the other attempts may run per rest period.

export interface HostKey {
  readonly organizationId: string;
  /** The host and port. */
  readonly host: string;
}

/** The host's health after an attempt: it responded, with or without 2xx, or it did not. */
export type HostHealth =
  | { readonly kind: 'answered'; readonly accepted: boolean; readonly address: string }
  | { readonly kind: 'silent'; readonly reason: AttemptReason; readonly restMs: number };

/**
 * `era`: the era of the host's breaker, which is stored with the result of the attempt.
 * `provenNetworks`: networks from which the host has responded 2xx to this organization. Attempts
 * to addresses in them are not counted.
 */
type HostAdmission =
  | Readonly<{ kind: 'go'; era: number; provenNetworks: readonly string[] }>
  | Readonly<{ kind: 'wait'; why: 'host_away' | 'no_room'; afterMs: number }>;

/**
 * Time after which an unrecorded attempt counts as lost with its worker: 15 s to send, and the rest
 * to load and record.
 */
export const LEASE_MS = 25_000;
/** Concurrent attempts per organization. In total there are as many as the workers have slots. */
const ORGANIZATION_CONCURRENCY = 20;
/** Concurrent attempts per organization to one host. */
const HOST_CONCURRENCY = 10;
/**
 * Attempts of all organizations to one host: concurrently, and per second. Higher than the limit of
 * a single organization.
 */
const SHARED_HOST_CONCURRENCY = 40;
const SHARED_HOST_PER_SECOND = 200;
/** Concurrent attempts to a host that has never responded 2xx to this organization. */
const UNPROVEN_HOST_CONCURRENCY = 1;
/** Networks that are stored per host, the newest first. */
const MAX_PROVEN_NETWORKS = 16;
/** Attempts per hour to one address, from all hosts that are unproven there. */
const ADDRESS_ATTEMPTS_PER_HOUR = 20;
const HOUR_MS = 3_600_000;
const SPEND_MS = HOUR_MS / ADDRESS_ATTEMPTS_PER_HOUR;
/** Namespaces of advisory locks. */
const ORGANIZATION_LOCK = 2;
const HOST_LOCK = 3;
const SHORTEST_ATTEMPT_MS = 100;
const LONGEST_WAIT_FOR_SLOT_MS = 120_000;
/**
 * Older attempts are ignored when measuring the pace, because most of them are leases of a dead
 * worker.
 */
const PACE_FROM_MS = 5000;

const FAILURES_TO_OPEN = 5;
/** The rest between two trials doubles up to this multiple of the first rest. */
const LONGEST_REST = 12;
const DEFAULT_REST_MS = 5000;
const DEFAULT_LONGEST_WAIT_MS = 1_800_000;

/** All deliveries that wait for one host check it at most ten times a second in total. */
const TURN_MS = 100;

/**
 * Decides whether an attempt may be made. An attempt that may not is deferred until its turn, so
 * that thousands of waiting deliveries cost almost nothing. If the host is away, it waits about as
 * long as the host has been away, at most half an hour. If there is no free slot, it waits about as
 * long as the attempts ahead of it take.
 * @param owed true for the first or the last attempt of a delivery
 */
export async function admitToHost(
  tx: Transaction,
  key: HostKey,
  owed: boolean,
  scheduleMs: readonly number[],
): Promise<HostAdmission> {
  const first = await judge(tx, key, owed, scheduleMs);
  // A deferred attempt needs no lock. The others are judged again under the lock, or two concurrent
  // attempts would both get the last slot.
  if (first.kind === 'wait') return first;
  const { organizationId, host } = key;
  await tx.execute(sql`
    select pg_advisory_xact_lock(${ORGANIZATION_LOCK}, hashtext(${organizationId})),
           pg_advisory_xact_lock(${HOST_LOCK}, hashtext(${host}))`);
  return await judge(tx, key, owed, scheduleMs);
}

/**
 * Counts one attempt for each unproven address that the attempt may connect to. An address allows
 * 20 attempts, and gets one back every three minutes. Only a 2xx response under one name and port
 * to one organization proves a receiver. So a 2xx does not lift the limit for other names at the
 * same address. It does not lift the limit for other addresses of the same name either, because its
 * owner can change DNS at any time.
 * @param addresses the resolved and checked addresses of the host
 * @returns the addresses that may be connected to
 */
export async function admitToAddresses(
  db: Database,
  addresses: readonly string[],
): Promise<string[]> {
  const rows = await run<{ address: string }>(db)`
    with asked as (
      select address, webhook_network(address::inet) as network
        from unnest(${sql.param(addresses)}::text[]) address
    ), admitted as (
      -- In a fixed order, so that two attempts cannot deadlock.
      insert into webhook_networks as n (network, spent_until)
      select distinct network, clock_timestamp() + ${span(SPEND_MS)}
        from asked
       order by network
      on conflict (network) do update
         set spent_until = greatest(n.spent_until, clock_timestamp()) + ${span(SPEND_MS)}
       where n.spent_until <= clock_timestamp() + ${span(HOUR_MS - SPEND_MS)}
      returning network
    )
    select address from asked join admitted using (network)`;
  return rows.map(({ address }) => address);
}

/** Reverts the count of `admitToAddresses` for these addresses, because nothing was sent. */
export async function giveBackAddresses(
  tx: Transaction,
  addresses: readonly string[],
): Promise<void> {
  await run(tx)`
    update webhook_networks set spent_until = spent_until - ${span(SPEND_MS)}
     where network in (
       select webhook_network(address::inet)
         from unnest(${sql.param(addresses)}::text[]) address)`;
}

async function judge(
  tx: Transaction,
  key: HostKey,
  owed: boolean,
  scheduleMs: readonly number[],
): Promise<HostAdmission> {
  const [load, breaker] = await Promise.all([readLoad(tx, key), readBreaker(tx, key)]);
  // While the breaker is open, a running attempt is its only trial.
  if (breaker.open && (load.ofHost > 0 || (breaker.rests && !owed))) {
    return await waitForHost(tx, key, breaker.awayMs, scheduleMs);
  }
  const hostConcurrency = breaker.proven ? HOST_CONCURRENCY : UNPROVEN_HOST_CONCURRENCY;
  const isFull =
    load.ofOrganization >= ORGANIZATION_CONCURRENCY ||
    load.ofHost >= hostConcurrency ||
    load.byAll >= SHARED_HOST_CONCURRENCY ||
    load.lastSecond >= SHARED_HOST_PER_SECOND;
  if (isFull) return await waitForSlot(tx, key, load);
  return { kind: 'go', era: breaker.era, provenNetworks: breaker.networks };
}

/** The running attempts, and those to the host in the last second. */
interface Load {
  readonly ofOrganization: number;
  /** Attempts of the organization to the host. */
  readonly ofHost: number;
  /** Attempts of all organizations to the host. */
  readonly byAll: number;
  readonly lastSecond: number;
  /** The mean duration of the organization's attempts. */
  readonly meanMs: number;
}

async function readLoad(tx: Transaction, { organizationId, host }: HostKey): Promise<Load> {
  // A running attempt is half over on average.
  const load = await run<Load>(tx)`
    select count(*) filter (where ours)::int as "ofOrganization",
           count(*) filter (where ours and theirs)::int as "ofHost",
           count(*) filter (where theirs)::int as "byAll",
           coalesce(2 * avg(age_ms) filter (where ours and age_ms < ${PACE_FROM_MS}), 0)::float8
             as "meanMs",
           (select count(*)::int
              from webhook_attempts a
              join webhook_deliveries t on t.id = a.delivery_id
             where a.started_at > (select clock_timestamp()) - ${span(1000)}
               and t.leased_host = ${host}) as "lastSecond"
      from webhook_deliveries d
      join batches b on b.id = d.batch_id
     cross join lateral (
       select b.organization_id = ${organizationId} as ours,
              d.leased_host = ${host} as theirs,
              ${LEASE_MS} - extract(epoch from d.leased_until - clock_timestamp()) * 1000
                as age_ms) lease
     where d.leased_until > (select clock_timestamp())`;
  return only(load);
}

interface Breaker {
  readonly era: number;
  readonly open: boolean;
  /** Null if it is not open. */
  readonly rests: boolean | null;
  /** Time since the first failure in a row. Null if there was no failure yet. */
  readonly awayMs: number | null;
  readonly proven: boolean;
  readonly networks: readonly string[];
}

const UNKNOWN_HOST: Breaker = {
  era: 0,
  open: false,
  rests: null,
  awayMs: null,
  proven: false,
  networks: [],
};

async function readBreaker(tx: Transaction, { organizationId, host }: HostKey): Promise<Breaker> {
  const [breaker] = await run<Breaker>(tx)`
    select era, open_until is not null as open, open_until > clock_timestamp() as rests,
           (extract(epoch from clock_timestamp() - failing_since) * 1000)::float8 as "awayMs",
           accepted_at is not null as proven, proven_networks::text[] as networks
      from webhook_hosts
     where organization_id = ${organizationId} and host = ${host}`;
  return breaker ?? UNKNOWN_HOST;
}

async function waitForHost(
  tx: Transaction,
  key: HostKey,
  awayMs: number | null,
  scheduleMs: readonly number[],
): Promise<HostAdmission> {
  const shortest = firstRestMs(scheduleMs);
  const longest = Math.max(shortest, scheduleMs[3] ?? DEFAULT_LONGEST_WAIT_MS);
  const restMs = spread(Math.min(Math.max(Number(awayMs), shortest), longest));
  const turnMs = Number(await takeTurn(tx, key, TURN_MS, longest));
  return { kind: 'wait', why: 'host_away', afterMs: Math.ceil(Math.max(restMs, turnMs)) };
}

async function waitForSlot(tx: Transaction, key: HostKey, load: Load): Promise<HostAdmission> {
  // An organization without a free slot has one queue for all its hosts.
  const isOrganizationFull = load.ofOrganization >= ORGANIZATION_CONCURRENCY;
  const queue = isOrganizationFull ? { ...key, host: '' } : key;
  const paceMs = Math.max(load.meanMs, SHORTEST_ATTEMPT_MS) / HOST_CONCURRENCY;
  const turnMs = await takeTurn(tx, queue, paceMs, LONGEST_WAIT_FOR_SLOT_MS);
  const afterMs = turnMs ?? spread(LONGEST_WAIT_FOR_SLOT_MS);
  return { kind: 'wait', why: 'no_room', afterMs: Math.ceil(afterMs) };
}

/**
 * Reserves the next turn in a queue.
 * @returns milliseconds until the turn; null if the queue is longer than `longestMs`
 */
async function takeTurn(
  tx: Transaction,
  { organizationId, host }: HostKey,
  paceMs: number,
  longestMs: number,
): Promise<number | null> {
  const [turn] = await tx.execute<{ ms: number }>(sql`
    insert into webhook_hosts as h (organization_id, host, failures, turn_at)
    values (${organizationId}, ${host}, 0, clock_timestamp() + ${span(paceMs)})
    on conflict (organization_id, host) do update
       set turn_at = greatest(h.turn_at, clock_timestamp()) + ${span(paceMs)}
     where coalesce(h.turn_at, '-infinity') < clock_timestamp() + ${span(longestMs)}
    returning (extract(epoch from turn_at - clock_timestamp()) * 1000)::float8 as ms`);
  return turn?.ms ?? null;
}

/** Randomizes a wait, so that waiting deliveries do not return all at once. */
function spread(ms: number): number {
  return ms * (0.5 + Math.random() / 2);
}

/** Returns the first rest of the breaker, in milliseconds: the first wait of the schedule. */
export function firstRestMs(scheduleMs: readonly number[]): number {
  return scheduleMs[1] || DEFAULT_REST_MS;
}

/**
 * Records the result of an attempt for its host. Any response closes the breaker, and five silent
 * attempts in a row open it. Each opening starts a new era. Only attempts of the current era count,
 * because earlier ones prove nothing new.
 */
export async function noteHost(
  tx: Transaction,
  attempt: AdmittedHost,
  health: HostHealth,
): Promise<void> {
  if (health.kind === 'answered') await noteAnswer(tx, attempt, health.address, health.accepted);
  else await noteSilence(tx, attempt, health.reason, health.restMs);
}

/** The host of an attempt, as it was when the attempt was admitted. */
interface AdmittedHost extends HostKey {
  readonly era: number;
  readonly provenNetworks: readonly string[];
}

async function noteAnswer(
  tx: Transaction,
  { organizationId, host, era, provenNetworks }: AdmittedHost,
  address: string,
  accepted: boolean,
): Promise<void> {
  if (accepted && provenNetworks.length === 0) {
    await tx.execute(sql`
      insert into webhook_hosts (organization_id, host, failures)
      values (${organizationId}, ${host}, 0)
          on conflict do nothing`);
  }
  const network = sql`webhook_network(${address}::inet)`;
  const isNew = sql`${accepted} and ${network} <> all (proven_networks)`;
  const max = sql.raw(String(MAX_PROVEN_NETWORKS));
  await tx.execute(sql`
    update webhook_hosts
       set failures = 0, times_opened = 0, open_until = null,
           turn_at = case when failures > 0 then null else turn_at end,
           accepted_at = case when ${accepted} then clock_timestamp() else accepted_at end,
           proven_networks =
             case when ${isNew} then (array_prepend(${network}, proven_networks))[:${max}]
                  else proven_networks end
     where organization_id = ${organizationId} and host = ${host} and era = ${era}
       and (failures > 0
            or ${isNew}
            or ${accepted}
               and coalesce(accepted_at < clock_timestamp() - interval '1 day', true))`);
}

async function noteSilence(
  tx: Transaction,
  { organizationId, host, era }: AdmittedHost,
  reason: AttemptReason,
  restMs: number,
): Promise<void> {
  // An owed trial that was made early does not make the rest longer.
  const opens = sql`case when h.open_until is null then h.failures + 1 >= ${FAILURES_TO_OPEN}
    else h.open_until <= clock_timestamp() end`;
  const rest = sql`least(power(2, h.times_opened), ${LONGEST_REST}) * ${restMs / 1000}::float8`;
  await tx.execute(sql`
    insert into webhook_hosts as h (organization_id, host, failures, failing_since, last_reason)
    values (${organizationId}, ${host}, 1, clock_timestamp(), ${reason})
    on conflict (organization_id, host) do update
       set failures = h.failures + 1, last_reason = excluded.last_reason,
           failing_since =
             case h.failures when 0 then excluded.failing_since else h.failing_since end,
           era = h.era + (${opens})::integer,
           times_opened = h.times_opened + (${opens})::integer,
           open_until =
             case when ${opens} then clock_timestamp() + make_interval(secs => ${rest})
                  else h.open_until end
     where h.era = ${era}`);
}

// Targets that operators have blocked for all organizations. They are read before each attempt.

/**
 * Blocks a target, or unblocks it.
 * @returns false if nothing changed
 */
export async function setBlock(
  db: Database,
  by: ChangedBy,
  target: string,
  blocked: boolean,
): Promise<boolean> {
  return await transaction(db, async (tx) => {
    const isChanged = blocked ? await block(tx, by, target) : await unblock(tx, target);
    if (!isChanged) return false;
    const action = blocked ? 'webhooks.block' : 'webhooks.unblock';
    await recordAudit(tx, by, { action, organizationId: null, subject: target, details: {} });
    return true;
  });
}

async function block(tx: Transaction, by: ChangedBy, target: string): Promise<boolean> {
  const added = await run(tx)`
    insert into webhook_blocks (target, reason) values (${target}, ${by.reason})
        on conflict do nothing
    returning target`;
  return added.length > 0;
}

async function unblock(tx: Transaction, target: string): Promise<boolean> {
  const removed = await run(tx)`
    delete from webhook_blocks where target = ${target} returning target`;
  return removed.length > 0;
}

/**
 * Pending deliveries of an organization to a host. `host` is as in a URL, with an IPv6 address in
 * brackets.
 */
export interface PendingHost extends Record<string, unknown> {
  readonly organizationId: string;
  readonly host: string;
  readonly deliveries: number;
}

/** Counts pending deliveries by organization and host. */
export async function listPendingHosts(db: Database): Promise<PendingHost[]> {
  return await run<PendingHost>(db)`
    select b.organization_id as "organizationId", count(*)::int as deliveries,
           lower(substring(
             b.webhook_url from '^[^:]+://(?:[^/?#@]*@)?(\\[[^]]*\\]|[^:/?#]*)')) as host
      from webhook_deliveries d
      join batches b on b.id = d.batch_id
     where d.state = 'pending'
     group by 1, 3`;
}

/**
 * Lists the blocked targets, the newest first. A target is a range of addresses, or a host with all
 * its subdomains.
 */
export async function listBlocks(db: Database) {
  return await run<{ target: string; reason: string; since: Date }>(db)`
    select target, reason, created_at as since
      from webhook_blocks
     order by created_at desc, target`;
}
