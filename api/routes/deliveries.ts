import type { Lifecycle } from '@hapi/hapi';
import { type LoggedDelivery, listBatchDeliveries } from '../../db/webhooks/log.ts';
import { markResendStarted, resendOwn } from '../../db/webhooks/resends.ts';
import { readInTurn } from '../http/overload.ts';
import { DELIVERIES_QUERY, idsOf, listedBy } from '../http/parameters.ts';
import { problem } from '../problems.ts';
import { startDelivery } from '../temporal.ts';
import type { SubmitDeps } from './submit.ts';

/** The customer's log of webhook deliveries, and sending one of them again. */
export function deliveryHandlers({ db, log, start }: Pick<SubmitDeps, 'db' | 'log' | 'start'>) {
  return {
    getDeliveries: async (request, h) => {
      const { organizationId } = request.auth.credentials;
      const { batch_id, limit, cursor } = listedBy(request, DELIVERIES_QUERY);
      const page = { limit, after: cursor && `msg_${cursor}` };
      const list = () => listBatchDeliveries(db, organizationId, batch_id, page);
      const found = await readInTurn(request, list);
      if (!found) throw problem('batch_not_found');
      const body = {
        deliveries: found.deliveries.map(presented),
        next_cursor: found.next?.slice('msg_'.length) ?? null,
      };
      return h.response(body);
    },
    resendDelivery: async (request, h) => {
      const { batch_id, delivery_id } = idsOf(request);
      const { organizationId } = request.auth.credentials;
      const which = { organizationId, batchId: batch_id, deliveryId: delivery_id };
      const outcome = await request.app.place.inTurn(() => resendOwn(db, which));
      switch (outcome.kind) {
        case 'resent': {
          // It is committed: if Temporal is away the sweep starts it.
          const started = await start((...temporal) => startDelivery(...temporal, which));
          // Unmarked, it is started once more, which changes nothing.
          if (started) await markResendStarted(db, delivery_id).catch(() => {});
          log.info({ organization_id: organizationId, batch_id, delivery_id, started }, 'delivery resent');
          return h.response(presented(outcome.delivery)).code(202);
        }
        case 'unknown':
          throw problem('delivery_not_found');
        case 'pending':
          throw problem('delivery_pending');
        case 'suspended':
          throw problem('webhooks_suspended');
        default:
          return outcome satisfies never;
      }
    },
  } satisfies Record<string, Lifecycle.Method>;
}

/** As `deliveryAnswer` of schemas.ts describes it. */
function presented(delivery: LoggedDelivery): object {
  return {
    id: delivery.id,
    request_id: delivery.requestId,
    status: delivery.state,
    created_at: delivery.createdAt,
    decided_at: delivery.decidedAt,
    next_attempt_at: delivery.nextAttemptAt,
    attempts: delivery.log.map(({ n, startedAt, durationMs, statusCode, reason, responseExcerpt }) => ({
      n,
      started_at: startedAt,
      duration_ms: durationMs,
      status_code: statusCode,
      reason,
      // What isn't UTF-8, or was cut in the middle of a character, becomes U+FFFD.
      response_excerpt: responseExcerpt?.toString('utf8') ?? null,
    })),
  };
}
