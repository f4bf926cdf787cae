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

/** Why a delivery is to be looked at again, and when; null: by the activity's own backoff. */
interface Later {
  readonly why: string;
  readonly message: string;
  readonly afterMs: number | null;
}

/**
 * Deliveries (DECISIONS.md, Webhooks). One look at a delivery is at most one attempt. After the
 * first, Temporal's retry is the schedule, and every other wait too: for room, for a host that is
 * away, for an attempt that another worker makes.
 */
export function createWebhookActivities({ db, log, post, rules }: WebhookDeps) {
  const scheduleMs = rules.webhookScheduleMs;

  /** @returns how the delivery is decided, if it is */
  const tryDelivery = async (deliveryId: string): Promise<DeliveryResult | Later> => {
    const claimed = await claimDelivery(db, deliveryId, rules);
    switch (claimed.kind) {
      case 'over':
        return claimed.state;
      case 'wait':
        // Waiting is no fault, and no attempt.
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
      // A retry tries the other addresses as well, because the proven ones may be away.
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
      // Nothing reached the receiver, so that this was no attempt.
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
   * Makes the first attempt, for which it waits a little if there is no room at once.
   * @returns whether that decided the delivery
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
     * Makes the first attempts of deliveries that became due in the same moment, side by side.
     * @returns the ids of those that are not decided by it
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
     * Sends one delivery once, when it is due and there is room. Its place in the schedule is
     * counted in the database, because a worker's shutdown burns attempts of Temporal's that never
     * left this machine.
     * @returns once the delivery is decided
     * @throws {ApplicationFailure} retryable, with the time until the next look, while it is not
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
 * How long a first attempt waits in its activity for room at its receiver; after that it waits in
 * Temporal.
 */
const ROOM_MS = 10_000;

/**
 * How long a receiver's answer is kept for a database that is away. Forgotten, it would be asked
 * for again.
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
