import { setTimeout } from 'node:timers/promises';
import { Context } from '@temporalio/activity';
import { ApplicationFailure, ApplicationFailureCategory } from '@temporalio/common';
import { DatabaseError } from '../db/errors.ts';
import { count, time } from '../db/metrics.ts';
import { SecretUnreadable } from '../db/secrets.ts';
import { tellSpan } from '../db/traces.ts';
import {
  type AttemptOutcome,
  type Claim,
  claimDelivery,
  holdUnreadable,
  recordAttempt,
  releaseClaim,
} from '../db/webhooks/attempts.ts';
import { loadDelivery } from '../db/webhooks/deliveries.ts';
import { admitToAddresses, firstRestMs, type HostHealth } from '../db/webhooks/hosts.ts';
import type { DeliveryResult } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { withHeartbeat } from './heartbeat.ts';
import { NotAttempted } from './webhooks/attempt.ts';
import { isInNetworks } from './webhooks/ip-policy.ts';
import { type Answer, reasonOf } from './webhooks/post.ts';
import { delayBefore, isDelivered, isFinal } from './webhooks/retry.ts';
import { sign } from './webhooks/signature.ts';

type WebhookDeps = Pick<ActivityDeps, 'db' | 'log' | 'post' | 'rules'>;

/**
 * The reason why a delivery is tried again, and the delay. A null delay means the activity's own
 * backoff.
 */
interface Later {
  readonly why: string;
  readonly message: string;
  readonly afterMs: number | null;
}

/**
 * Returns the activities that send webhooks (DECISIONS.md, Webhooks). One run makes at most one
 * attempt. After the first attempt, Temporal's retries are the schedule. They also cover every
 * other wait: for a free slot, for a host that is unavailable, and for an attempt on another
 * worker.
 */
export function createWebhookActivities({ db, log, post, rules }: WebhookDeps) {
  const scheduleMs = rules.webhookScheduleMs;

  /**
   * Makes at most one attempt.
   * @returns the result of the delivery, or the reason and delay for another run
   */
  const tryDelivery = async (deliveryId: string): Promise<DeliveryResult | Later> => {
    const claimed = await claimDelivery(db, deliveryId, rules);
    switch (claimed.kind) {
      case 'over':
        return claimed.state;
      case 'wait':
        // Waiting is neither an error nor an attempt.
        return { ...claimed, message: `not now: ${claimed.why}` };
      case 'attempt':
        return await attempt(claimed.claim);
      default:
        return claimed satisfies never;
    }
  };

  const attempt = async (claim: Claim): Promise<DeliveryResult | Later> => {
    const { deliveryId, organizationId, at: startedAt } = claim;
    const begun = performance.now();
    const made = await makeAttempt(claim);
    if (made instanceof NotAttempted) {
      return { why: made.why, message: made.message, afterMs: null };
    }
    if (made instanceof SecretUnreadable) {
      count('npe_delivery_attempts_total', { outcome: 'secret_unreadable' });
      log.error({ delivery_id: deliveryId, organization_id: organizationId }, made.message);
      const afterMs = await holdUnreadable(db, claim);
      return { why: 'secret_unreadable', message: 'the webhook secret cannot be read', afterMs };
    }
    const { answer, batchId, attempts } = made;
    const durationMs = Math.round(performance.now() - begun);
    const outcome = outcomeOf(claim, answer);
    const reason = reasonOf(answer);
    const statusCode = answer.kind === 'answered' ? answer.status : null;
    const responseExcerpt = answer.kind === 'answered' ? answer.excerpt : null;
    const record = { startedAt, durationMs, statusCode, reason, responseExcerpt };
    await throughOutage(() => recordAttempt(db, claim, record, outcome, healthOf(answer)));
    const n = attempts + 1;
    const ids = { delivery_id: deliveryId, batch_id: batchId, organization_id: organizationId };
    const isDone = outcome.state === 'delivered';
    const what = { outcome: isDone ? 'delivered' : (reason ?? 'none') };
    count('npe_delivery_attempts_total', what);
    time('npe_delivery_attempt_duration_seconds', what, durationMs / 1000);
    const attributes = { ...ids, attempt: n, result: outcome.state, status: statusCode, reason };
    tellSpan({
      batchId,
      name: 'webhook attempt',
      kind: 'client',
      durationMs,
      attributes,
      isError: !isDone,
    });
    log.info(attributes, 'webhook attempt');
    if (outcome.state !== 'pending') return outcome.state;
    const message = `attempt ${n}: ${statusCode === null ? reason : `HTTP ${statusCode}`}`;
    return { why: 'not_delivered', message, afterMs: outcome.afterMs };
  };

  const makeAttempt = async (claim: Claim) => {
    let counted: readonly string[] = [];
    const admit = async (addresses: readonly string[]) => {
      const proven = addresses.filter((address) => isInNetworks(address, claim.provenNetworks));
      // A retry tries the other addresses too, because the proven ones may be unavailable.
      if (proven.length > 0 && claim.step === 0) return proven;
      const others = addresses.filter((address) => !proven.includes(address));
      if (others.length > 0) counted = await admitToAddresses(db, others);
      return [...proven, ...counted];
    };
    try {
      const { id, secrets, batchId, attempts, ...what } = await loadDelivery(db, claim.deliveryId);
      const timestamp = Math.floor(claim.at.getTime() / 1000);
      const headers = {
        'content-type': 'application/json',
        'webhook-id': id,
        'webhook-timestamp': String(timestamp),
        'webhook-signature': sign({ id, timestamp, body: what.body, secrets }),
      };
      return { answer: await post({ ...what, headers, admit }), batchId, attempts };
    } catch (error) {
      if (error instanceof SecretUnreadable) return error;
      // Nothing reached the receiver, so this was not an attempt.
      await releaseClaim(db, claim, counted);
      if (!(error instanceof NotAttempted)) throw error;
      log.warn({ delivery_id: claim.deliveryId }, error.message);
      return error;
    }
  };

  const outcomeOf = ({ step }: Claim, answer: Answer): AttemptOutcome => {
    if (answer.kind === 'answered' && isDelivered(answer.status)) return { state: 'delivered' };
    const retryAfterMs = answer.kind === 'answered' ? answer.retryAfterMs : null;
    const afterMs = delayBefore(step + 2, scheduleMs, retryAfterMs, Math.random());
    return isFinal(answer) || afterMs === null
      ? { state: 'failed' }
      : { state: 'pending', afterMs };
  };

  const healthOf = (answer: Answer): HostHealth | null => {
    if (answer.kind === 'answered') {
      return { kind: 'answered', accepted: isDelivered(answer.status), address: answer.address };
    }
    if (isFinal(answer) || answer.reason === 'unproven_host') return null;
    return { kind: 'silent', reason: answer.reason, restMs: firstRestMs(scheduleMs) };
  };

  /**
   * Makes the first attempt. Waits a little if there is no free slot yet.
   * @returns true if that attempt decided the delivery
   */
  const attemptFirst = async (deliveryId: string, deadline: number): Promise<boolean> => {
    for (;;) {
      const tried = await tryDelivery(deliveryId);
      if (typeof tried === 'string') return true;
      const afterMs = tried.afterMs ?? Infinity;
      if (tried.why !== 'no_room' || performance.now() + afterMs > deadline) return false;
      await setTimeout(afterMs);
    }
  };

  return {
    /**
     * Makes the first attempts of deliveries that became due at the same moment, concurrently.
     * @returns the ids of the deliveries that are still undecided
     */
    async attemptDeliveries({
      deliveryIds,
    }: {
      deliveryIds: readonly string[];
    }): Promise<string[]> {
      return await withHeartbeat(Context.current(), async () => {
        const deadline = performance.now() + ROOM_MS;
        const decided = await Promise.all(deliveryIds.map((id) => attemptFirst(id, deadline)));
        return deliveryIds.filter((_, index) => !decided[index]);
      });
    },

    /**
     * Sends one delivery once, when it is due and has a slot. The database counts its place in the
     * schedule, because a worker's shutdown uses up Temporal attempts that never left this machine.
     * @returns the result, once the delivery is decided
     * @throws {ApplicationFailure} retryable while the delivery is undecided, with the delay until
     * the next run
     */
    async deliverWebhook({ deliveryId }: { deliveryId: string }): Promise<DeliveryResult> {
      const tried = await withHeartbeat(Context.current(), () => tryDelivery(deliveryId));
      if (typeof tried === 'string') return tried;
      throw ApplicationFailure.create({
        message: tried.message,
        type: `Webhook.${tried.why}`,
        category: ApplicationFailureCategory.BENIGN,
        ...(tried.afterMs === null ? {} : { nextRetryDelay: Math.max(tried.afterMs, 1) }),
      });
    },
  };
}

/**
 * The time a first attempt waits inside its activity for a slot at its receiver. After that it
 * waits in Temporal.
 */
const ROOM_MS = 10_000;

/**
 * The time we keep a receiver's response while the database is unavailable. If we dropped it, the
 * webhook would be sent again.
 */
const OUTAGE_MS = 15_000;
const AGAIN_MS = 500;

async function throughOutage(work: () => Promise<void>): Promise<void> {
  const giveUpAt = performance.now() + OUTAGE_MS;
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof DatabaseError && error.unavailable) || performance.now() > giveUpAt)
        throw error;
      await setTimeout(AGAIN_MS);
    }
  }
}
