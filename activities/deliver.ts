import { setTimeout } from 'node:timers/promises';
import { Context } from '@temporalio/activity';
import type { Logger } from 'pino';
import { SecretUnreadable } from '../db/accounts/secrets.ts';
import type { Database } from '../db/connection/client.ts';
import { DatabaseError, Refusal } from '../db/connection/errors.ts';
import { publishSpan } from '../db/connection/traces.ts';
import { count, time } from '../db/operations/metrics.ts';
import {
  type AttemptOutcome,
  type Claim,
  claimDelivery,
  holdUnreadable,
  recordAttempt,
  releaseClaim,
} from '../db/webhooks/attempts.ts';
import { loadDelivery } from '../db/webhooks/deliveries.ts';
import { firstRestMs, type HostHealth } from '../db/webhooks/hosts.ts';
import { admitToAddresses } from '../db/webhooks/networks.ts';
import type { DeliveryResult } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { benignFailure } from './failures.ts';
import { withHeartbeat } from './heartbeat.ts';
import { CountedTooLate } from './webhooks/attempt.ts';
import { isInNetworks } from './webhooks/ip-policy.ts';
import { type AttemptResult, reasonOf } from './webhooks/post.ts';
import { delayBefore, isDelivered, isFinal } from './webhooks/retry.ts';
import { signedHeaders } from './webhooks/signature.ts';

export type WebhookDeps = Pick<ActivityDeps, 'db' | 'log' | 'post' | 'rules'>;

type AttemptRecord = Parameters<typeof recordAttempt>[2];

interface ReportedAttempt {
  /** The number of the attempt, from 1. */
  readonly n: number;
  readonly batchId: string;
  readonly record: AttemptRecord;
  readonly outcome: AttemptOutcome;
}

/**
 * The reason why a delivery is tried again later, and the delay before that. If the delay is null,
 * the retry policy of the activity sets it.
 */
interface Later {
  readonly why: string;
  readonly message: string;
  readonly afterMs: number | null;
}

/**
 * The longest time that a first attempt waits for a free slot inside its activity. After that, the
 * delivery gets its own workflow and waits there.
 */
const SLOT_WAIT_MS = 10_000;

/**
 * If the database is unavailable, we keep a receiver's response in memory for this long and try to
 * record it. Without a record, the webhook would be sent again.
 */
const OUTAGE_MS = 15_000;
const AGAIN_MS = 500;

/**
 * Returns the activities that send webhooks (DECISIONS.md, Webhooks). Each run of an activity makes
 * at most one attempt for a delivery. Later attempts are retries by Temporal, whose delays follow
 * the webhook schedule. An activity is also retried if it had to wait: for a free slot, for an
 * unavailable host, or for another worker's attempt of the same delivery.
 */
export function createWebhookActivities(deps: WebhookDeps) {
  return {
    /**
     * Makes the first attempts of several deliveries concurrently. An error of one delivery does not
     * affect the others.
     * @returns the ids of the deliveries that have neither succeeded nor finally failed
     * @throws {DatabaseError} if PostgreSQL is unavailable
     */
    async attemptDeliveries({
      deliveryIds,
    }: {
      deliveryIds: readonly string[];
    }): Promise<string[]> {
      return await withHeartbeat(Context.current(), async () => {
        const deadline = performance.now() + SLOT_WAIT_MS;
        const attempts = deliveryIds.map((id) => attemptAlone(deps, id, deadline));
        const decided = await Promise.all(attempts);
        return deliveryIds.filter((_, index) => !decided[index]);
      });
    },

    /**
     * Makes one attempt of a delivery if it is due and has a free slot. The database counts the
     * attempts. Temporal's own count is too high, because an activity that a worker's shutdown
     * interrupts also counts.
     * @returns the result, if the delivery has succeeded or finally failed
     * @throws {ApplicationFailure} retryable, with the delay until the next run, if the delivery
     * has to be tried again
     */
    async deliverWebhook({
      deliveryId,
    }: {
      deliveryId: string;
    }): Promise<DeliveryResult> {
      const tried = await withHeartbeat(Context.current(), () =>
        tryDelivery(deps, deliveryId),
      );
      if (typeof tried === 'string') return tried;
      const { why, message, afterMs } = tried;
      const delayMs = afterMs === null ? null : Math.max(afterMs, 1);
      throw benignFailure(message, `Webhook.${why}`, delayMs);
    },
  };
}

/**
 * Makes the first attempt of a delivery that shares its activity with others. If the attempt throws
 * an error, the delivery gets its own workflow, unless the delivery does not exist.
 * @returns true if the delivery needs no further attempt
 */
async function attemptAlone(
  deps: WebhookDeps,
  deliveryId: string,
  deadline: number,
): Promise<boolean> {
  try {
    return await attemptFirst(deps, deliveryId, deadline);
  } catch (error) {
    if (error instanceof DatabaseError && error.isAway) throw error;
    deps.log.error({ err: error, delivery_id: deliveryId }, 'webhook attempt failed');
    return error instanceof Refusal;
  }
}

/**
 * Makes the first attempt of a delivery. If no slot is free, waits for one until the
 * deadline.
 * @returns true if the delivery has succeeded or finally failed
 */
async function attemptFirst(
  deps: WebhookDeps,
  deliveryId: string,
  deadline: number,
): Promise<boolean> {
  for (;;) {
    const tried = await tryDelivery(deps, deliveryId);
    if (typeof tried === 'string') return true;
    const { why, afterMs } = tried;
    if (why !== 'no_room' || afterMs === null) return false;
    if (performance.now() + afterMs > deadline) return false;
    await setTimeout(afterMs);
  }
}

/**
 * Makes at most one attempt of a delivery.
 * @returns the final result of the delivery, or the reason and the delay if it must be tried later
 */
async function tryDelivery(
  deps: WebhookDeps,
  deliveryId: string,
): Promise<DeliveryResult | Later> {
  const claimed = await claimDelivery(deps.db, deliveryId, deps.rules);
  switch (claimed.kind) {
    case 'over':
      return claimed.state;
    case 'wait': {
      // The delivery must wait. This counts neither as an error nor as an attempt.
      const { why, afterMs } = claimed;
      return { why, message: `not now: ${why}`, afterMs };
    }
    case 'attempt':
      return await attempt(deps, claimed.claim);
    default:
      return claimed satisfies never;
  }
}

async function attempt(deps: WebhookDeps, claim: Claim): Promise<DeliveryResult | Later> {
  const begun = performance.now();
  const made = await makeAttempt(deps, claim);
  if (made instanceof CountedTooLate) {
    return { why: 'counted_too_late', message: made.message, afterMs: null };
  }
  if (made instanceof SecretUnreadable) {
    return await postpone(deps, claim, made);
  }
  const { result, batchId } = made;
  const outcome = outcomeOf(claim, result, deps.rules.webhookScheduleMs);
  const durationMs = Math.round(performance.now() - begun);
  const record = recordOf(claim, result, durationMs);
  const health = healthOf(result, deps.rules.webhookScheduleMs);
  await throughOutage(() => recordAttempt(deps.db, claim, record, outcome, health));
  const n = made.attempts + 1;
  report(deps.log, claim, { n, batchId, record, outcome });
  if (outcome.state !== 'pending') return outcome.state;
  const shown = record.statusCode === null ? record.reason : `HTTP ${record.statusCode}`;
  return {
    why: 'not_delivered',
    message: `attempt ${n}: ${shown}`,
    afterMs: outcome.afterMs,
  };
}

function recordOf(
  { at: startedAt }: Claim,
  result: AttemptResult,
  durationMs: number,
): AttemptRecord {
  const common = { startedAt, durationMs, reason: reasonOf(result) };
  if (result.kind === 'failed') {
    return { ...common, statusCode: null, responseExcerpt: null };
  }
  return { ...common, statusCode: result.status, responseExcerpt: result.excerpt };
}

/**
 * Postpones a delivery whose webhook secret cannot be read. An operator has to repair the secret.
 */
async function postpone(
  { db, log }: WebhookDeps,
  claim: Claim,
  error: SecretUnreadable,
): Promise<Later> {
  const { deliveryId, organizationId } = claim;
  count('npe_delivery_attempts_total', { outcome: 'secret_unreadable' });
  log.error({ delivery_id: deliveryId, organization_id: organizationId }, error.message);
  const afterMs = await holdUnreadable(db, claim);
  return {
    why: 'secret_unreadable',
    message: 'the webhook secret cannot be read',
    afterMs,
  };
}

/** Counts an attempt in the metrics, by its outcome. */
export function countAttempt(outcome: string, durationMs: number): void {
  count('npe_delivery_attempts_total', { outcome });
  time('npe_delivery_attempt_duration_seconds', { outcome }, durationMs / 1000);
}

/** Logs an attempt, and records its metrics and its trace span. */
function report(
  log: Logger,
  { deliveryId, organizationId }: Claim,
  { n, batchId, record, outcome }: ReportedAttempt,
): void {
  const { durationMs, statusCode: status, reason } = record;
  const isError = outcome.state !== 'delivered';
  countAttempt(isError ? (reason ?? 'none') : 'delivered', durationMs);
  const attributes = {
    delivery_id: deliveryId,
    batch_id: batchId,
    organization_id: organizationId,
    attempt: n,
    result: outcome.state,
    status,
    reason,
  };
  const name = 'webhook attempt';
  publishSpan({ batchId, name, kind: 'client', durationMs, attributes, isError });
  log.info(attributes, name);
}

/** Loads, signs, and sends a delivery. Releases the claim if nothing was sent. */
async function makeAttempt({ db, log, post }: WebhookDeps, claim: Claim) {
  let counted: readonly string[] = [];
  const admit = async (addresses: readonly string[]) => {
    const admitted = await admitAddresses(db, claim, addresses);
    counted = admitted.counted;
    return [...admitted.proven, ...counted];
  };
  try {
    const delivery = await loadDelivery(db, claim.deliveryId);
    const { id, url, body, blocked, secrets, batchId, attempts } = delivery;
    const headers = signedHeaders({ id, body, secrets }, claim.at);
    const result = await post({ url, headers, body, blocked, admit });
    return { result, batchId, attempts };
  } catch (error) {
    if (error instanceof SecretUnreadable) return error;
    // Nothing was sent to the receiver, so this does not count as an attempt.
    await releaseClaim(db, claim, counted);
    if (!(error instanceof CountedTooLate)) throw error;
    log.warn({ delivery_id: claim.deliveryId }, error.message);
    return error;
  }
}

/**
 * Returns the addresses that an attempt may connect to.
 * - `proven` addresses have accepted a delivery of this organization before.
 * - `counted` addresses have not. The attempt counts against their limit of attempts per hour.
 */
async function admitAddresses(db: Database, claim: Claim, addresses: readonly string[]) {
  const proven = addresses.filter((address) =>
    isInNetworks(address, claim.provenNetworks),
  );
  // A first attempt only uses the proven addresses. A retry also tries the others, because the
  // proven addresses may be unavailable.
  if (proven.length > 0 && claim.step === 0) {
    return { proven, counted: [] };
  }
  const { organizationId } = claim;
  const others = addresses.filter((address) => !proven.includes(address));
  if (others.length === 0) return { proven, counted: [] };
  return { proven, counted: await admitToAddresses(db, organizationId, others) };
}

function outcomeOf(
  { step }: Claim,
  result: AttemptResult,
  scheduleMs: readonly number[],
): AttemptOutcome {
  let retryAfterMs: number | null = null;
  if (result.kind === 'responded') {
    if (isDelivered(result.status)) return { state: 'delivered' };
    retryAfterMs = result.retryAfterMs;
  }
  if (isFinal(result)) return { state: 'failed' };
  const afterMs = delayBefore(step + 2, scheduleMs, retryAfterMs, Math.random());
  if (afterMs === null) return { state: 'failed' };
  return { state: 'pending', afterMs };
}

/** Returns what the result of an attempt shows about its host. Null if nothing. */
export function healthOf(
  result: AttemptResult,
  scheduleMs: readonly number[],
): HostHealth | null {
  if (result.kind === 'responded') {
    return {
      kind: 'responded',
      accepted: isDelivered(result.status),
      address: result.address,
    };
  }
  if (isFinal(result) || result.reason === 'unproven_host') return null;
  return { kind: 'silent', reason: result.reason, restMs: firstRestMs(scheduleMs) };
}

/** Runs database work, and repeats it for up to `OUTAGE_MS` while the database is unavailable. */
async function throughOutage(work: () => Promise<void>): Promise<void> {
  const giveUpAt = performance.now() + OUTAGE_MS;
  for (;;) {
    try {
      return await work();
    } catch (error) {
      const isOutage = error instanceof DatabaseError && error.unavailable;
      if (!isOutage || performance.now() > giveUpAt) throw error;
      await setTimeout(AGAIN_MS);
    }
  }
}
