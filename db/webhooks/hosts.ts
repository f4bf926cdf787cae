import { sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import {
  type Database,
  only,
  run,
  span,
  type Transaction,
  transaction,
} from '../client.ts';
import type { AttemptReason } from '../words.ts';

// Limits the webhooks that are sent to a host. The limits apply per organization and host, and they
// are stored in the database, so that all workers share them:
// - The number of concurrent attempts to a host. Only one is allowed until the host has accepted a
//   delivery. A second limit counts the attempts of all organizations, so that they cannot flood a
//   host through us.
// - The number of attempts to an IP address, for hosts that have never accepted a delivery there.
// - A circuit breaker. While it is open, only one attempt at a time runs, as a trial of whether the
//   host is back. The first and the last attempt of a delivery are owed, so they may run as soon as
//   no other trial runs. Only one of the other attempts may run per rest period.

/** How long deliveries wait for a host that is away, in milliseconds. */
interface Rests {
  readonly firstMs: number;
  readonly longestMs: number;
}

export interface HostKey {
  readonly organizationId: string;
  /** The host and port of the webhook URL. */
  readonly host: string;
}

/**
 * The result of an attempt for its host. `answered`: the host responded, and `accepted` is true for
 * a 2xx. `silent`: the host did not respond, and `restMs` is how long its breaker rests after it
 * opens.
 */
export type HostHealth =
  | { readonly kind: 'answered'; readonly accepted: boolean; readonly address: string }
  | { readonly kind: 'silent'; readonly reason: AttemptReason; readonly restMs: number };

/**
 * The decision about an attempt. `era` is how often the host's breaker has opened so far. It is
 * passed back with the result of the attempt. `provenNetworks` are networks from which the host has
 * responded 2xx to this organization. Attempts to addresses in them are not counted.
 */
type HostAdmission =
  | Readonly<{ kind: 'go'; era: number; provenNetworks: readonly string[] }>
  | Readonly<{ kind: 'wait'; why: 'host_away' | 'no_room'; afterMs: number }>;

/**
 * An attempt without a recorded result counts as lost after this time, because its worker has died.
 * Sending takes up to 15 s, and the rest is for loading the delivery and recording the result.
 */
export const LEASE_MS = 25_000;
/**
 * The maximum number of concurrent attempts per organization. Only the workers' activity slots
 * limit the attempts of all organizations together.
 */
const ORGANIZATION_CONCURRENCY = 20;
/** The maximum number of concurrent attempts of one organization to one host. */
const HOST_CONCURRENCY = 10;
/**
 * The limits for the attempts of all organizations to one host: how many may run at once, and how
 * many may start per second. They are higher than the limit of a single organization.
 */
const SHARED_HOST_CONCURRENCY = 40;
const SHARED_HOST_PER_SECOND = 200;
/**
 * The maximum number of concurrent attempts to a host that has never responded 2xx to this
 * organization.
 */
const UNPROVEN_HOST_CONCURRENCY = 1;
/** The maximum number of proven networks that are stored per host. The oldest are dropped. */
const MAX_PROVEN_NETWORKS = 16;
/**
 * The maximum number of attempts per hour to one IP address. Only attempts for hosts that have
 * never responded 2xx from this address are counted.
 */
const ADDRESS_ATTEMPTS_PER_HOUR = 20;
const HOUR_MS = 3_600_000;
const SPEND_MS = HOUR_MS / ADDRESS_ATTEMPTS_PER_HOUR;
/**
 * The first key of each advisory lock. It says whether the lock is for an organization or a host.
 */
const ORGANIZATION_LOCK = 2;
const HOST_LOCK = 3;
const SHORTEST_ATTEMPT_MS = 100;
const LONGEST_WAIT_FOR_SLOT_MS = 120_000;
/**
 * Running attempts that are older than this are left out of the mean duration, because most of them
 * belong to a dead worker.
 */
const PACE_FROM_MS = 5000;

const FAILURES_TO_OPEN = 5;
/**
 * While the breaker is open, the rest between two trials doubles each time, up to this multiple of
 * the first rest.
 */
const LONGEST_REST = 12;
const DEFAULT_REST_MS = 5000;

/**
 * Deliveries that wait for a host whose breaker is open take turns. The turns are at least this
 * many milliseconds apart.
 */
const TURN_MS = 100;

/**
 * Decides whether an attempt may be made now, or how long it has to wait. Waiting deliveries take
 * turns, so that thousands of them cause almost no load. If the host is away, an attempt waits
 * about as long as the host has been away, but at most `rests.longestMs`. If no slot is free,
 * it waits about as long as the attempts ahead of it take.
 * @param owed true for the first or the last attempt of a delivery
 */
export async function admitToHost(
  tx: Transaction,
  key: HostKey,
  owed: boolean,
  rests: Rests,
): Promise<HostAdmission> {
  const first = await judge(tx, key, owed, rests);
  // An attempt that has to wait needs no lock. An attempt that may run is judged again while it
  // holds the locks. Otherwise two concurrent attempts could both get the last slot.
  if (first.kind === 'wait') return first;
  const { organizationId, host } = key;
  await tx.execute(sql`
    select pg_advisory_xact_lock(${ORGANIZATION_LOCK}, hashtext(${organizationId})),
           pg_advisory_xact_lock(${HOST_LOCK}, hashtext(${host}))`);
  return await judge(tx, key, owed, rests);
}

/**
 * Counts one attempt for each unproven address that the attempt may connect to. An address has 20
 * attempts, and gets one back every three minutes. A 2xx response proves a host only for one
 * organization, one name and port, and one address. So it does not lift the limit for other names
 * at the same address. It does not lift the limit for other addresses of the same name either,
 * because the owner of the name can change its DNS records at any time.
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
      -- Inserts in a fixed order, so that two attempts cannot deadlock.
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
  rests: Rests,
): Promise<HostAdmission> {
  const [load, breaker] = await Promise.all([readLoad(tx, key), readBreaker(tx, key)]);
  // While the breaker is open, only one attempt may run at a time. During the rest, this must be an
  // owed attempt.
  if (breaker.open && (load.ofHost > 0 || (breaker.rests && !owed))) {
    return await waitForHost(tx, key, breaker.awayMs, rests);
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

/**
 * The number of attempts that are running, and of attempts to the host that started within the last
 * second.
 */
interface Load {
  readonly ofOrganization: number;
  /** The number of running attempts of the organization to the host. */
  readonly ofHost: number;
  /** The number of running attempts of all organizations to the host. */
  readonly byAll: number;
  readonly lastSecond: number;
  /** The mean duration of the organization's attempts, in milliseconds. */
  readonly meanMs: number;
}

async function readLoad(
  tx: Transaction,
  { organizationId, host }: HostKey,
): Promise<Load> {
  // The mean duration is twice the mean age, because on average a running attempt is half over.
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
  /** True until the next trial is due. Null if the breaker is closed. */
  readonly rests: boolean | null;
  /**
   * Milliseconds since the first of the latest failures in a row. Null before the first failure.
   */
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

async function readBreaker(
  tx: Transaction,
  { organizationId, host }: HostKey,
): Promise<Breaker> {
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
  { firstMs, longestMs }: Rests,
): Promise<HostAdmission> {
  const longest = Math.max(firstMs, longestMs);
  const restMs = spread(Math.min(Math.max(Number(awayMs), firstMs), longest));
  const turnMs = Number(await takeTurn(tx, key, TURN_MS, longest));
  return { kind: 'wait', why: 'host_away', afterMs: Math.ceil(Math.max(restMs, turnMs)) };
}

async function waitForSlot(
  tx: Transaction,
  key: HostKey,
  load: Load,
): Promise<HostAdmission> {
  // If the organization has no free slot, its deliveries to all hosts wait in one queue, which is
  // stored under an empty host.
  const isOrganizationFull = load.ofOrganization >= ORGANIZATION_CONCURRENCY;
  const queue = isOrganizationFull ? { ...key, host: '' } : key;
  const paceMs = Math.max(load.meanMs, SHORTEST_ATTEMPT_MS) / HOST_CONCURRENCY;
  const turnMs = await takeTurn(tx, queue, paceMs, LONGEST_WAIT_FOR_SLOT_MS);
  const afterMs = turnMs ?? spread(LONGEST_WAIT_FOR_SLOT_MS);
  return { kind: 'wait', why: 'no_room', afterMs: Math.ceil(afterMs) };
}

/**
 * Reserves the next turn in a queue of deliveries.
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

/** Randomizes a wait, so that the waiting deliveries do not all try again at once. */
function spread(ms: number): number {
  return ms * (0.5 + Math.random() / 2);
}

/**
 * Returns how long a breaker rests after it has opened, in milliseconds. It rests as long as the
 * retry schedule waits before the second attempt.
 */
export function firstRestMs(scheduleMs: readonly number[]): number {
  return scheduleMs[1] || DEFAULT_REST_MS;
}

/**
 * Records the result of an attempt for its host. Any response closes the breaker, and five silent
 * attempts in a row open it. The result is ignored if the breaker has opened since the attempt was
 * admitted, because the attempt says nothing about the host's state since then.
 */
export async function noteHost(
  tx: Transaction,
  attempt: AdmittedHost,
  health: HostHealth,
): Promise<void> {
  if (health.kind === 'answered')
    await noteAnswer(tx, attempt, health.address, health.accepted);
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
  // An owed attempt that fails during the rest does not make the rest longer.
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

// The functions below read and change the targets that operators have blocked for all
// organizations. These targets are read before each attempt.

/**
 * Blocks or unblocks a target.
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
    await recordAudit(tx, by, {
      action,
      organizationId: null,
      subject: target,
      details: {},
    });
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
 * The number of pending deliveries that an organization has for one host. `host` is written as in a
 * URL, so an IPv6 address is in brackets.
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
