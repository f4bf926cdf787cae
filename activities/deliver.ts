import { setTimeout } from 'node:timers/promises';
import { Context } from '@temporalio/activity';
import { ApplicationFailure, ApplicationFailureCategory } from '@temporalio/common';
import { DatabaseError } from '../db/errors.ts';
import {
  type AttemptOutcome,
  type Claim,
  claimDelivery,
  recordAttempt,
  releaseClaim,
} from '../db/webhooks/attempts.ts';
import { loadDelivery } from '../db/webhooks/deliveries.ts';
import { firstRestMs, type HostHealth } from '../db/webhooks/hosts.ts';
import type { DeliveryResult } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { withHeartbeat } from './heartbeat.ts';
import { ProxyUnavailable } from './webhooks/attempt.ts';
import { type Answer, reasonOf } from './webhooks/post.ts';
import { delayBefore, isDelivered, isFinal } from './webhooks/retry.ts';
import { sign } from './webhooks/signature.ts';

type WebhookDeps = Pick<ActivityDeps, 'db' | 'log' | 'post' | 'rules'>;

/**
 * Deliveries (DECISIONS.md, Webhooks). One call of the activity is at most one attempt; Temporal's retry is the
 * schedule, and every other wait too: for room, for a host that is away, for an attempt that another worker makes.
 */
export function createWebhookActivities({ db, log, post, rules }: WebhookDeps) {
  const scheduleMs = rules.webhookScheduleMs;

  const attempt = async (claim: Claim): Promise<DeliveryResult> => {
    const { deliveryId, organizationId } = claim;
    const startedAt = new Date();
    const { answer, batchId, attempts } = await makeAttempt(claim, startedAt);
    const durationMs = Date.now() - startedAt.getTime();
    const outcome = outcomeOf(claim, answer);
    const reason = reasonOf(answer);
    const statusCode = answer.kind === 'answered' ? answer.status : null;
    const responseExcerpt = answer.kind === 'answered' ? answer.excerpt : null;
    const record = { startedAt, durationMs, statusCode, reason, responseExcerpt };
    await throughOutage(() => recordAttempt(db, claim, record, outcome, healthOf(answer)));
    const n = attempts + 1;
    const ids = { delivery_id: deliveryId, batch_id: batchId, organization_id: organizationId };
    log.info({ ...ids, attempt: n, result: outcome.state, status: statusCode, reason }, 'webhook attempt');
    if (outcome.state !== 'pending') return outcome.state;
    throw ApplicationFailure.create({
      message: `attempt ${n}: ${statusCode === null ? reason : `HTTP ${statusCode}`}`,
      type: 'WebhookNotDelivered',
      category: ApplicationFailureCategory.BENIGN,
      nextRetryDelay: outcome.afterMs,
    });
  };

  const makeAttempt = async (claim: Claim, startedAt: Date) => {
    try {
      const { id, url, body, secrets, batchId, attempts } = await loadDelivery(db, claim.deliveryId);
      const timestamp = Math.floor(startedAt.getTime() / 1000);
      const headers = {
        'content-type': 'application/json',
        'webhook-id': id,
        'webhook-timestamp': String(timestamp),
        'webhook-signature': sign({ id, timestamp, body, secrets }),
      };
      return { answer: await post({ url, body, headers }), batchId, attempts };
    } catch (error) {
      // Nothing reached the receiver, so that this was no attempt.
      await releaseClaim(db, claim);
      if (!(error instanceof ProxyUnavailable)) throw error;
      log.warn({ delivery_id: claim.deliveryId }, error.message);
      throw ApplicationFailure.create({ message: error.message, type: 'Webhook.proxy_unavailable' });
    }
  };

  const outcomeOf = ({ step }: Claim, answer: Answer): AttemptOutcome => {
    if (answer.kind === 'answered' && isDelivered(answer.status)) return { state: 'delivered' };
    const retryAfterMs = answer.kind === 'answered' ? answer.retryAfterMs : null;
    const afterMs = delayBefore(step + 2, scheduleMs, retryAfterMs, Math.random());
    return isFinal(answer) || afterMs === null ? { state: 'failed' } : { state: 'pending', afterMs };
  };

  const healthOf = (answer: Answer): HostHealth => {
    if (answer.kind === 'answered') return { kind: 'answered' };
    if (answer.reason === 'blocked_address') return { kind: 'untried' };
    return { kind: 'silent', reason: answer.reason, restMs: firstRestMs(scheduleMs) };
  };

  return {
    /**
     * Sends one delivery once, when it is due and there is room. Its place in the schedule is counted in the
     * database, because a worker's shutdown burns attempts of Temporal's that never left this machine.
     * @returns once the delivery is decided
     * @throws {ApplicationFailure} retryable, with the time until the next look, while it is not
     */
    async deliverWebhook({ deliveryId }: { deliveryId: string }): Promise<DeliveryResult> {
      const claimed = await claimDelivery(db, deliveryId, rules);
      if (claimed.kind === 'over') return claimed.state;
      if (claimed.kind === 'wait') throw later(claimed.why, claimed.afterMs);
      return await withHeartbeat(Context.current(), () => attempt(claimed.claim));
    },
  };
}

/** How long a receiver's answer is kept for a database that is away. Forgotten, it would be asked for again. */
const OUTAGE_MS = 15_000;
const AGAIN_MS = 500;

async function throughOutage(work: () => Promise<void>): Promise<void> {
  const giveUpAt = Date.now() + OUTAGE_MS;
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof DatabaseError && error.unavailable) || Date.now() > giveUpAt) throw error;
      await setTimeout(AGAIN_MS);
    }
  }
}

/** Waiting is no fault, and no attempt. */
function later(why: string, afterMs: number): ApplicationFailure {
  return ApplicationFailure.create({
    message: `not now: ${why}`,
    type: `Webhook.${why}`,
    category: ApplicationFailureCategory.BENIGN,
    nextRetryDelay: Math.max(afterMs, 1),
  });
}
