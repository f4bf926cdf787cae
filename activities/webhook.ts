import { Context } from '@temporalio/activity';
import { ApplicationFailure, ApplicationFailureCategory } from '@temporalio/common';
import { loadDelivery, recordAttempt } from '../db/deliveries.ts';
import type { DeliveryResult } from '../workflows/messages.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { ActivityDeps } from './index.ts';
import type { Answer } from './post.ts';
import { sign } from './signature.ts';
import { delayBefore, isDelivered, isFinal } from './webhook-schedule.ts';

/** Deliveries (decisions.md, Webhooks). One call of the activity is one attempt; Temporal's retry is the schedule. */
export function createWebhookActivities({
  db,
  log,
  post,
  rules,
}: Pick<ActivityDeps, 'db' | 'log' | 'post' | 'rules'>) {
  const attempt = async (deliveryId: string): Promise<DeliveryResult> => {
    const delivery = await loadDelivery(db, deliveryId);
    if (delivery.state !== 'pending') return delivery.state;
    const startedAt = new Date();
    const timestamp = Math.floor(startedAt.getTime() / 1000);
    const { url, body, secrets } = delivery;
    const answer = await post({
      url,
      body,
      headers: {
        'content-type': 'application/json',
        'webhook-id': deliveryId,
        'webhook-timestamp': String(timestamp),
        'webhook-signature': sign({ id: deliveryId, timestamp, body, secrets }),
      },
    });
    const n = delivery.attempts + 1;
    const retryAfterMs = answer.kind === 'answered' ? answer.retryAfterMs : null;
    const delay = delayBefore(n + 1, rules.webhookScheduleMs, retryAfterMs, Math.random());
    const result = decide(answer, delay);
    await recordAttempt(
      db,
      deliveryId,
      { startedAt, durationMs: Date.now() - startedAt.getTime(), ...logged(answer) },
      result,
    );
    const { batchId: batch_id, organizationId: organization_id } = delivery;
    log.info(
      { delivery_id: deliveryId, batch_id, organization_id, attempt: n, result, ...outcome(answer) },
      'webhook attempt',
    );
    if (result !== 'pending' || delay === null) return result === 'delivered' ? 'delivered' : 'failed';
    throw ApplicationFailure.create({
      message: `attempt ${n}: ${outcome(answer).outcome}`,
      type: 'WebhookNotDelivered',
      category: ApplicationFailureCategory.BENIGN,
      nextRetryDelay: delay,
    });
  };

  return {
    /**
     * Sends one delivery once. The number of attempts is counted in the database, because a worker's shutdown burns
     * attempts of Temporal's that never left this machine.
     * @returns once the delivery is decided
     * @throws {ApplicationFailure} retryable, with the schedule's next delay, while it is not
     */
    deliverWebhook: ({ deliveryId }: { deliveryId: string }): Promise<DeliveryResult> =>
      withHeartbeat(Context.current(), () => attempt(deliveryId)),
  };
}

function decide(answer: Answer, delay: number | null): 'pending' | 'delivered' | 'failed' {
  if (answer.kind === 'answered' && isDelivered(answer.status)) return 'delivered';
  return isFinal(answer) || delay === null ? 'failed' : 'pending';
}

function logged(answer: Answer) {
  return answer.kind === 'answered'
    ? { statusCode: answer.status, errorCode: null, responseExcerpt: answer.excerpt }
    : {
        statusCode: null,
        errorCode: answer.kind === 'failed' ? answer.code : answer.kind,
        responseExcerpt: null,
      };
}

function outcome(answer: Answer): { readonly outcome: string } {
  if (answer.kind === 'answered') return { outcome: `HTTP ${answer.status}` };
  return { outcome: answer.kind === 'failed' ? answer.code : answer.kind };
}
