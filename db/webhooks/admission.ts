import { sql } from 'drizzle-orm';
import { lasts, only, run, span, type Transaction } from '../connection/client.ts';
import { webhookHosts } from '../schema.ts';
import { type HostKey, readBreaker } from './hosts.ts';

// Decides whether an attempt of a delivery may run now. Three limits apply, and all workers share
// them through the database:
// - The number of concurrent attempts of an organization.
// - The number of concurrent attempts to a host. Only one is allowed until the host has accepted a
//   delivery of the organization. A second limit counts the attempts of all organizations, so that
//   they cannot flood a host through us.
// - The circuit breaker of the host (hosts.ts). While it is open, only one attempt at a time runs,
//   as a trial of whether the host is back. The first and the last attempt of a delivery are owed,
//   so they may run as soon as no other trial runs. Only one of the other attempts may run per rest
//   period.
//
// A running attempt is a row of webhook_deliveries with a lease. So there is no counter that could
// go wrong when a worker dies, and each decision counts the leases again.

/** How long deliveries wait for a host that is away, in milliseconds. */
export interface Rests {
  readonly firstMs: number;
  readonly longestMs: number;
}

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
/** The classes of advisory locks that `lockSlots` takes. They are the first of a lock's two keys. */
const ORGANIZATION_LOCK = 2;
const HOST_LOCK = 3;
const SHORTEST_ATTEMPT_MS = 100;
const LONGEST_WAIT_FOR_SLOT_MS = 120_000;
/**
 * Running attempts that are older than this are left out of the mean duration, because most of them
 * belong to a dead worker.
 */
const PACE_FROM_MS = 5000;

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
  await lockSlots(tx, key);
  const load = await readLoad(tx, key);
  const breaker = await readBreaker(tx, key, rests.firstMs);
  // While the breaker is open, only one attempt may run at a time. During the rest, this must be an
  // owed attempt.
  if (breaker.isOpen && (load.ofHost > 0 || (breaker.isResting && !owed))) {
    return await waitForHost(tx, key, breaker.awayMs, rests);
  }
  if (isFull(load, breaker.isProven)) {
    return await waitForSlot(tx, key, load);
  }
  return { kind: 'go', era: breaker.era, provenNetworks: breaker.provenNetworks };
}

/**
 * Locks the slots of an organization and of a host until the transaction ends. Otherwise two
 * concurrent attempts could both see the last free slot and take it. The two locks guard different
 * slots:
 * - The lock of the organization is for its attempts to different hosts, which share its slots.
 * - The lock of the host is for attempts of different organizations, which share the host's slots.
 *
 * These are advisory locks, because no row stands for all attempts to a host, and other writers of
 * an organization's row must not wait for its webhooks. All callers lock in this order, so that they
 * cannot deadlock. The statements that read the load come after this one, because a statement does
 * not see what was committed while it waited for a lock.
 */
async function lockSlots(
  tx: Transaction,
  { organizationId, host }: HostKey,
): Promise<void> {
  await run(tx)`
    select pg_advisory_xact_lock(${ORGANIZATION_LOCK}, hashtext(${organizationId})),
           pg_advisory_xact_lock(${HOST_LOCK}, hashtext(${host}))`;
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
               and a.started_at < (select clock_timestamp()) + ${span(1000)}
               and t.leased_host = ${host}) as "lastSecond"
      from webhook_deliveries d
     cross join lateral (
       select d.organization_id = ${organizationId} as ours,
              d.leased_host = ${host} as theirs,
              ${LEASE_MS} - extract(epoch from d.leased_until - clock_timestamp()) * 1000
                as age_ms) lease
     -- The second limits leave out times that were stored before the clock was set back.
     where d.leased_until > (select clock_timestamp())
       and d.leased_until < (select clock_timestamp()) + ${span(LEASE_MS + 1000)}`;
  return only(load);
}

function isFull(load: Load, isProven: boolean): boolean {
  const hostConcurrency = isProven ? HOST_CONCURRENCY : UNPROVEN_HOST_CONCURRENCY;
  return (
    load.ofOrganization >= ORGANIZATION_CONCURRENCY ||
    load.ofHost >= hostConcurrency ||
    load.byAll >= SHARED_HOST_CONCURRENCY ||
    load.lastSecond >= SHARED_HOST_PER_SECOND
  );
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
 * Reserves the next turn in a queue of deliveries. A last turn that is more than twice `longestMs`
 * ahead was reserved before the clock was set back, so the queue begins again.
 * @returns milliseconds until the turn; null if the queue is longer than `longestMs`
 */
async function takeTurn(
  tx: Transaction,
  { organizationId, host }: HostKey,
  paceMs: number,
  longestMs: number,
): Promise<number | null> {
  const { turnAt } = webhookHosts;
  const [turn] = await tx
    .insert(webhookHosts)
    .values({
      organizationId,
      host,
      failures: 0,
      turnAt: sql`clock_timestamp() + ${span(paceMs)}`,
    })
    .onConflictDoUpdate({
      target: [webhookHosts.organizationId, webhookHosts.host],
      set: {
        turnAt: sql`
          case when ${lasts(turnAt, 2 * longestMs)} then ${turnAt} else clock_timestamp() end
            + ${span(paceMs)}`,
      },
      setWhere: sql`
        coalesce(${turnAt}, '-infinity') < clock_timestamp() + ${span(longestMs)}
          or not ${lasts(turnAt, 2 * longestMs)}`,
    })
    .returning({
      ms: sql<number>`(extract(epoch from ${turnAt} - clock_timestamp()) * 1000)::float8`,
    });
  return turn?.ms ?? null;
}

/** Randomizes a wait, so that the waiting deliveries do not all try again at once. */
function spread(ms: number): number {
  return ms * (0.5 + Math.random() / 2);
}
