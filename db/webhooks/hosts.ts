import { sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, run, span, type Transaction, transaction } from '../client.ts';
import type { AttemptReason } from '../words.ts';

// Who may be sent to now, per organization and host, in the database, so that it holds across
// workers: how many attempts are made at once (fewer to a host that has taken none yet; and there
// is a bound for all organizations together, so that nobody is flooded through us), how many an
// address gets from hosts that have taken none yet, and a circuit breaker. While it is open, one
// attempt at a time finds out whether the host is back. The first and the last attempt of a
// delivery are owed and take that place whenever it is free; of the others only one per rest is let
// through.

export interface HostKey {
  readonly organizationId: string;
  /** Host and port. */
  readonly host: string;
}

/** What an attempt says about the host: it answered, and whether by 2xx, or it did not. */
export type HostHealth =
  | { readonly kind: 'answered'; readonly accepted: boolean; readonly address: string }
  | { readonly kind: 'silent'; readonly reason: AttemptReason; readonly restMs: number };

/**
 * With the era of the host's breaker: what the attempt says is noted with it. `provenNetworks`: the
 * host has answered 2xx to this organization from there, so that attempts to addresses in them are
 * not counted.
 */
type HostAdmission =
  | Readonly<{ kind: 'go'; era: number; provenNetworks: readonly string[] }>
  | Readonly<{ kind: 'wait'; why: 'host_away' | 'no_room'; afterMs: number }>;

/**
 * An attempt that has not been recorded by then died with its worker: 15 s to send, the rest to
 * load and record.
 */
export const LEASE_MS = 25_000;
/**
 * Attempts of one organization that are made at once. In all there are as many as the workers have
 * slots.
 */
const AT_ONCE = 20;
/** Of these to one host. */
const AT_ONCE_TO_HOST = 10;
/**
 * Attempts of all organizations to one host: at once, and in a second. More than one of them alone
 * can use up.
 */
const AT_ONCE_TO_HOST_BY_ALL = 40;
const PER_SECOND_TO_HOST_BY_ALL = 200;
/** Attempts at once to a host that has never answered 2xx to this organization. */
const AT_ONCE_TO_UNPROVEN = 1;
/** Networks that are remembered for one host, the newest first. */
const MAX_PROVEN_NETWORKS = 16;
/** Attempts in an hour to one address, from all hosts that are unproven there. */
const PER_HOUR_TO_ADDRESS = 20;
const HOUR_MS = 3_600_000;
const SPEND_MS = HOUR_MS / PER_HOUR_TO_ADDRESS;
const ROOM_LOCK = 2;
const HOST_LOCK = 3;
const SHORTEST_ATTEMPT_MS = 100;
const LONGEST_WAIT_FOR_ROOM_MS = 120_000;
/**
 * Attempts that are older say nothing of the pace: most of them are leases of a worker that died.
 */
const PACE_FROM_MS = 5000;

const FAILURES_TO_OPEN = 5;
/** The rest between two trials doubles up to so many times the first. */
const LONGEST_REST = 12;
const DEFAULT_REST_MS = 5000;
const DEFAULT_LONGEST_WAIT_MS = 1_800_000;

/** Thousands that wait for one host look ten times a second at most, all together. */
const TURN_MS = 100;

/**
 * Asks whether an attempt may be made. One that may not is put off until its turn among the others,
 * so that many thousands that wait cost next to nothing: for a host that is away for about as long
 * as it has been away already, at most half an hour; for room for about as long as those ahead of
 * it take.
 * @param owed the first or the last attempt of a delivery
 */
export async function admitToHost(
  tx: Transaction,
  key: HostKey,
  owed: boolean,
  scheduleMs: readonly number[],
): Promise<HostAdmission> {
  const first = await judge(tx, key, owed, scheduleMs);
  // Whoever is put off has waited for nobody. Of the others two that judge at once would both find
  // the last place.
  if (first.kind === 'wait') return first;
  const { organizationId, host } = key;
  await tx.execute(sql`select pg_advisory_xact_lock(${ROOM_LOCK}, hashtext(${organizationId})),
                              pg_advisory_xact_lock(${HOST_LOCK}, hashtext(${host}))`);
  return await judge(tx, key, owed, scheduleMs);
}

/**
 * Counts one attempt at each address where the host is unproven and that the attempt may connect
 * to. An address has 20 attempts, and gets one back every three minutes. Only what was answered 2xx
 * under one name and port to one organization proves a receiver, so that a 2xx lifts the limit for
 * nothing else at the same address. Nor does it at another address of the name: its owner can
 * change DNS at any time.
 * @param addresses of the host, resolved and checked
 * @returns those that may be connected to
 */
export async function admitToAddresses(
  db: Database,
  addresses: readonly string[],
): Promise<string[]> {
  const rows = await run<{ address: string }>(db)`
    with asked as (
      select address, webhook_network(address::inet) as network from unnest(${sql.param(addresses)}::text[]) address
    ), admitted as (
      -- In one order, so that two attempts never wait for each other.
      insert into webhook_networks as n (network, spent_until)
      select distinct network, clock_timestamp() + ${span(SPEND_MS)} from asked order by network
      on conflict (network) do update set spent_until = greatest(n.spent_until, clock_timestamp()) + ${span(SPEND_MS)}
       where n.spent_until <= clock_timestamp() + ${span(HOUR_MS - SPEND_MS)}
      returning network
    )
    select address from asked join admitted using (network)`;
  return rows.map(({ address }) => address);
}

/** Takes back what `admitToAddresses` has counted for these addresses, because nothing was sent. */
export async function giveBackAddresses(
  tx: Transaction,
  addresses: readonly string[],
): Promise<void> {
  await run(tx)`
    update webhook_networks set spent_until = spent_until - ${span(SPEND_MS)}
     where network in (select webhook_network(address::inet) from unnest(${sql.param(addresses)}::text[]) address)`;
}

async function judge(
  tx: Transaction,
  key: HostKey,
  owed: boolean,
  scheduleMs: readonly number[],
): Promise<HostAdmission> {
  const { organizationId, host } = key;
  type Room = {
    of_organization: number;
    of_host: number;
    by_all: number;
    lately: number;
    mean_ms: number;
  };
  type Breaker = {
    era: number;
    open: boolean;
    rests: boolean;
    away_ms: string;
    proven: boolean;
    networks: string[];
  };
  const [[room], [breaker]] = await Promise.all([
    // An attempt that is under way is half over on average.
    tx.execute<Room>(sql`
      select count(*) filter (where ours)::int as of_organization,
             count(*) filter (where ours and theirs)::int as of_host, count(*) filter (where theirs)::int as by_all,
             coalesce(2 * avg(age_ms) filter (where ours and age_ms < ${PACE_FROM_MS}), 0)::float8 as mean_ms,
             (select count(*)::int from webhook_attempts a join webhook_deliveries t on t.id = a.delivery_id
               where a.started_at > (select clock_timestamp()) - ${span(1000)} and t.leased_host = ${host}) as lately
        from webhook_deliveries d join batches b on b.id = d.batch_id
       cross join lateral (
         select b.organization_id = ${organizationId} as ours, d.leased_host = ${host} as theirs,
                ${LEASE_MS} - extract(epoch from d.leased_until - clock_timestamp()) * 1000 as age_ms) lease
       where d.leased_until > (select clock_timestamp())`),
    tx.execute<Breaker>(sql`
      select era, open_until is not null as open, open_until > clock_timestamp() as rests,
             extract(epoch from clock_timestamp() - failing_since) * 1000 as away_ms,
             accepted_at is not null as proven, proven_networks::text[] as networks
        from webhook_hosts
       where organization_id = ${organizationId} and host = ${host}`),
  ]);
  // While it is open, an attempt that is under way is its one trial.
  if (breaker?.open && (room?.of_host || (breaker.rests && !owed))) {
    const shortest = firstRestMs(scheduleMs);
    const longest = Math.max(shortest, scheduleMs[3] ?? DEFAULT_LONGEST_WAIT_MS);
    const awayMs = spread(Math.min(Math.max(Number(breaker.away_ms), shortest), longest));
    const turnMs = await takeTurn(tx, key, TURN_MS, longest);
    return { kind: 'wait', why: 'host_away', afterMs: Math.ceil(Math.max(awayMs, turnMs ?? 0)) };
  }
  const proven = breaker?.proven ?? false;
  const isFull =
    room &&
    (room.of_organization >= AT_ONCE ||
      room.of_host >= (proven ? AT_ONCE_TO_HOST : AT_ONCE_TO_UNPROVEN) ||
      room.by_all >= AT_ONCE_TO_HOST_BY_ALL ||
      room.lately >= PER_SECOND_TO_HOST_BY_ALL);
  if (isFull) {
    // Whatever the hosts: an organization that has no room left is one line.
    const line = room.of_organization >= AT_ONCE ? { organizationId, host: '' } : key;
    const paceMs = Math.max(room.mean_ms, SHORTEST_ATTEMPT_MS) / AT_ONCE_TO_HOST;
    const turnMs = await takeTurn(tx, line, paceMs, LONGEST_WAIT_FOR_ROOM_MS);
    return {
      kind: 'wait',
      why: 'no_room',
      afterMs: Math.ceil(turnMs ?? spread(LONGEST_WAIT_FOR_ROOM_MS)),
    };
  }
  return { kind: 'go', era: breaker?.era ?? 0, provenNetworks: breaker?.networks ?? [] };
}

/** @returns milliseconds; null where the line is longer than `longestMs` */
async function takeTurn(
  tx: Transaction,
  { organizationId, host }: HostKey,
  paceMs: number,
  longestMs: number,
): Promise<number | null> {
  const [taken] = await tx.execute<{ ms: number }>(sql`
    insert into webhook_hosts as h (organization_id, host, failures, turn_at)
    values (${organizationId}, ${host}, 0, clock_timestamp() + ${span(paceMs)})
    on conflict (organization_id, host) do update
       set turn_at = greatest(h.turn_at, clock_timestamp()) + ${span(paceMs)}
     where coalesce(h.turn_at, '-infinity') < clock_timestamp() + ${span(longestMs)}
    returning (extract(epoch from turn_at - clock_timestamp()) * 1000)::float8 as ms`);
  return taken ? taken.ms : null;
}

/** So that those who wait do not come back all at once. */
function spread(ms: number): number {
  return ms * (0.5 + Math.random() / 2);
}

/** How long the breaker first rests: the schedule's own first wait. */
export function firstRestMs(scheduleMs: readonly number[]): number {
  return scheduleMs[1] || DEFAULT_REST_MS;
}

/**
 * Notes what an attempt says about its host: any answer closes the breaker, five silences in a row
 * open it. Each opening begins an era, and only attempts of this era count: those that were under
 * way before say nothing new.
 */
export async function noteHost(
  tx: Transaction,
  {
    organizationId,
    host,
    era,
    provenNetworks,
  }: HostKey & { readonly era: number; readonly provenNetworks: readonly string[] },
  health: HostHealth,
): Promise<void> {
  if (health.kind === 'answered') {
    if (health.accepted && provenNetworks.length === 0) {
      await tx.execute(sql`
        insert into webhook_hosts (organization_id, host, failures) values (${organizationId}, ${host}, 0)
            on conflict do nothing`);
    }
    const network = sql`webhook_network(${health.address}::inet)`;
    const isNews = sql`${health.accepted} and ${network} <> all (proven_networks)`;
    await tx.execute(sql`update webhook_hosts
      set failures = 0, times_opened = 0, open_until = null,
          turn_at = case when failures > 0 then null else turn_at end,
          accepted_at = case when ${health.accepted} then clock_timestamp() else accepted_at end,
          proven_networks = case when ${isNews}
            then (array_prepend(${network}, proven_networks))[:${sql.raw(String(MAX_PROVEN_NETWORKS))}] else proven_networks end
      where organization_id = ${organizationId} and host = ${host} and era = ${era} and (failures > 0 or ${isNews}
         or ${health.accepted} and coalesce(accepted_at < clock_timestamp() - interval '1 day', true))`);
    return;
  }
  const { reason, restMs } = health;
  // A trial that was owed and made before its time does not make the rest longer.
  const opens = sql`case when h.open_until is null then h.failures + 1 >= ${FAILURES_TO_OPEN}
    else h.open_until <= clock_timestamp() end`;
  const rest = sql`least(power(2, h.times_opened), ${LONGEST_REST}) * ${restMs / 1000}::float8`;
  await tx.execute(sql`
    insert into webhook_hosts as h (organization_id, host, failures, failing_since, last_reason)
    values (${organizationId}, ${host}, 1, clock_timestamp(), ${reason})
    on conflict (organization_id, host) do update
       set failures = h.failures + 1, last_reason = excluded.last_reason,
           failing_since = case h.failures when 0 then excluded.failing_since else h.failing_since end,
           era = h.era + (${opens})::integer, times_opened = h.times_opened + (${opens})::integer,
           open_until = case when ${opens} then clock_timestamp() + make_interval(secs => ${rest})
                        else h.open_until end
     where h.era = ${era}`);
}

// Where operators let no delivery go, of any organization: read before every attempt.

/**
 * Blocks a target, or ends that.
 * @returns false if it was so already, which changes nothing
 */
export async function setBlock(
  db: Database,
  by: ChangedBy,
  target: string,
  blocked: boolean,
): Promise<boolean> {
  return await transaction(db, async (tx) => {
    const changed = await tx.execute(
      blocked
        ? sql`insert into webhook_blocks (target, reason) values (${target}, ${by.reason})
                  on conflict do nothing returning target`
        : sql`delete from webhook_blocks where target = ${target} returning target`,
    );
    if (changed.length === 0) return false;
    const action = blocked ? 'webhooks.block' : 'webhooks.unblock';
    await recordAudit(tx, by, { action, organizationId: null, subject: target, details: {} });
    return true;
  });
}

/**
 * Pending deliveries of an organization to a host; `host` is as a URL has it, an IPv6 address in
 * brackets.
 */
export interface PendingHost extends Record<string, unknown> {
  readonly organizationId: string;
  readonly host: string;
  readonly deliveries: number;
}

/** Reads where pending deliveries go. */
export async function listPendingHosts(db: Database): Promise<PendingHost[]> {
  return await run<PendingHost>(db)`
    select b.organization_id as "organizationId", count(*)::int as deliveries,
           lower(substring(b.webhook_url from '^[^:]+://(?:[^/?#@]*@)?(\\[[^]]*\\]|[^:/?#]*)')) as host
      from webhook_deliveries d join batches b on b.id = d.batch_id
     where d.state = 'pending' group by 1, 3`;
}

/** What is blocked, a range of addresses or a host with all names below it; the newest first. */
export async function listBlocks(db: Database) {
  return await run<{ target: string; reason: string; since: Date }>(
    db,
  )`select target, reason, created_at as since from webhook_blocks order by created_at desc, target`;
}
