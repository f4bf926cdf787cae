import { and, eq, gt, sql } from 'drizzle-orm';
import { lasts, run, span, type Transaction } from '../connection/client.ts';
import { webhookHosts } from '../schema.ts';
import type { AttemptReason } from '../words.ts';

// The health of the hosts that receive webhooks. There is a circuit breaker per organization and
// host. Five silent attempts in a row open it, and any response closes it. While it is open, the
// host is tried once per rest period (admission.ts).

export interface HostKey {
  readonly organizationId: string;
  /** The host and port of the webhook URL. */
  readonly host: string;
}

/**
 * The result of an attempt for its host. `responded`: the host responded, and `accepted` is true for
 * a 2xx. `silent`: the host did not respond, and `restMs` is how long its breaker rests after it
 * opens.
 */
export type HostHealth =
  | { readonly kind: 'responded'; readonly accepted: boolean; readonly address: string }
  | { readonly kind: 'silent'; readonly reason: AttemptReason; readonly restMs: number };

/** The host of an attempt, as it was when the attempt was admitted. */
export interface AdmittedHost extends HostKey {
  readonly era: number;
  readonly provenNetworks: readonly string[];
}

/** The maximum number of proven networks that are stored per host. The oldest are dropped. */
const MAX_PROVEN_NETWORKS = 16;
const FAILURES_TO_OPEN = 5;
/**
 * While the breaker is open, the rest between two trials doubles each time, up to this multiple of
 * the first rest.
 */
const LONGEST_REST = 12;
const DEFAULT_REST_MS = 5000;

/**
 * Returns how long a breaker rests after it has opened, in milliseconds. It rests as long as the
 * retry schedule waits before the second attempt.
 */
export function firstRestMs(scheduleMs: readonly number[]): number {
  return scheduleMs[1] || DEFAULT_REST_MS;
}

/**
 * Returns the longest time that a delivery may wait for its next attempt, in milliseconds. It is
 * twice the longest wait of the retry schedule, because a receiver may ask for that much
 * (DECISIONS.md, Webhooks, schedule).
 */
export function longestWaitMs(scheduleMs: readonly number[]): number {
  return 2 * Math.max(...scheduleMs);
}

/**
 * Reads the breaker of a host. `isResting` is true until the next trial is due, and null while the
 * breaker is closed. It is false if the rest would be longer than the longest one, because the clock
 * was set back since then. `awayMs` is the time since the first of the latest failures in a row, and null
 * before the first failure.
 */
export async function readBreaker(
  tx: Transaction,
  { organizationId, host }: HostKey,
  restMs: number,
) {
  const { era, openUntil, failingSince, acceptedAt, provenNetworks } = webhookHosts;
  const [breaker] = await tx
    .select({
      era,
      isOpen: sql<boolean>`${openUntil} is not null`,
      isResting: sql<boolean | null>`${lasts(openUntil, restMs * LONGEST_REST)}`,
      awayMs: sql<number | null>`
        (extract(epoch from clock_timestamp() - ${failingSince}) * 1000)::float8`,
      isProven: sql<boolean>`${acceptedAt} is not null`,
      provenNetworks,
    })
    .from(webhookHosts)
    .where(
      and(eq(webhookHosts.organizationId, organizationId), eq(webhookHosts.host, host)),
    );
  return breaker ?? UNKNOWN_HOST;
}

const UNKNOWN_HOST = {
  era: 0,
  isOpen: false,
  isResting: null,
  awayMs: null,
  isProven: false,
  provenNetworks: [],
};

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
  if (health.kind === 'silent') {
    await noteSilence(tx, attempt, health.reason, health.restMs);
  } else if (health.accepted) {
    await noteAcceptance(tx, attempt, health.address);
  } else {
    await noteResponse(tx, attempt);
  }
}

/** Records a 2xx response. It also proves the network of the address that responded. */
async function noteAcceptance(
  tx: Transaction,
  { organizationId, host, era, provenNetworks }: AdmittedHost,
  address: string,
): Promise<void> {
  if (provenNetworks.length === 0) {
    await tx
      .insert(webhookHosts)
      .values({ organizationId, host, failures: 0 })
      .onConflictDoNothing();
  }
  // In most cases nothing changes, because the network is known, the host did not fail before, and
  // accepted_at is accurate to one day. Then no row is written.
  await run(tx)`
    update webhook_hosts
       set failures = 0, times_opened = 0, open_until = null,
           turn_at = case when failures > 0 then null else turn_at end,
           accepted_at = clock_timestamp(),
           proven_networks =
             case when network = any (proven_networks) then proven_networks
                  else (array_prepend(network, proven_networks))[:${MAX_PROVEN_NETWORKS}::int] end
      from webhook_network(${address}::inet) network
     where organization_id = ${organizationId} and host = ${host} and era = ${era}
       and (failures > 0
            or network <> all (proven_networks)
            or coalesce(accepted_at < clock_timestamp() - interval '1 day', true))`;
}

/** Records a response that is not 2xx. */
async function noteResponse(
  tx: Transaction,
  { organizationId, host, era }: AdmittedHost,
): Promise<void> {
  await tx
    .update(webhookHosts)
    .set({ failures: 0, timesOpened: 0, openUntil: null, turnAt: null })
    .where(
      and(
        eq(webhookHosts.organizationId, organizationId),
        eq(webhookHosts.host, host),
        eq(webhookHosts.era, era),
        gt(webhookHosts.failures, 0),
      ),
    );
}

/**
 * Counts a failure of the host, and opens its breaker after five in a row. A trial that fails
 * after the rest opens it again, for twice as long. An owed attempt that fails during the rest does
 * not make the rest longer.
 */
async function noteSilence(
  tx: Transaction,
  { organizationId, host, era }: AdmittedHost,
  reason: AttemptReason,
  restMs: number,
): Promise<void> {
  const { failures, failingSince, openUntil } = webhookHosts;
  const [counted] = await tx
    .insert(webhookHosts)
    .values({
      organizationId,
      host,
      failures: 1,
      failingSince: sql`clock_timestamp()`,
      lastReason: reason,
    })
    .onConflictDoUpdate({
      target: [webhookHosts.organizationId, webhookHosts.host],
      set: {
        failures: sql`${failures} + 1`,
        failingSince: sql`
          case when ${failures} = 0 then excluded.failing_since else ${failingSince} end`,
        lastReason: reason,
      },
      setWhere: eq(webhookHosts.era, era),
    })
    .returning({ failures });
  if (counted === undefined || counted.failures < FAILURES_TO_OPEN) {
    return;
  }
  await tx
    .update(webhookHosts)
    .set({
      era: sql`era + 1`,
      timesOpened: sql`times_opened + 1`,
      openUntil: sql`
        clock_timestamp() + ${span(restMs)} * least(power(2, times_opened), ${LONGEST_REST})`,
    })
    .where(
      and(
        eq(webhookHosts.organizationId, organizationId),
        eq(webhookHosts.host, host),
        // False during the rest. Null while the breaker is closed.
        sql`${lasts(openUntil, restMs * LONGEST_REST)} is not true`,
      ),
    );
}
