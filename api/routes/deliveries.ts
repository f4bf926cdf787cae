import type { Lifecycle, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { type LoggedDelivery, listBatchDeliveries } from '../../db/webhooks/log.ts';
import { markResendStarted, resendOwn } from '../../db/webhooks/resends.ts';
import { type Place, readInTurn } from '../http/overload.ts';
import { pageOf, pathId, valuesOf } from '../http/parameters.ts';
import { problem } from '../problems.ts';
import { startDelivery } from '../start.ts';
import type { SubmitDeps } from './submit.ts';

type DeliveryDeps = Pick<SubmitDeps, 'db' | 'log' | 'client' | 'taskQueue' | 'start'>;

/** The customer's log of webhook deliveries, and sending one of them again. */
export function deliveryHandlers(deps: DeliveryDeps) {
  return {
    getDeliveries: async (request, h) => {
      const { organizationId } = request.auth.credentials;
      const { batchId, limit, cursor } = valuesOf({
        batchId: pathId(request, 'batch_id'),
        ...pageOf(request),
      });
      const page = { limit, after: cursor && `msg_${cursor}` };
      const list = () => listBatchDeliveries(deps.db, organizationId, batchId, page);
      const found = await readInTurn(request, list);
      if (!found) throw problem('batch_not_found');
      const body = {
        deliveries: found.deliveries.map(presented),
        next_cursor: found.next?.slice('msg_'.length) ?? null,
      };
      return h.response(body);
    },
    resendDelivery: async (request, h) => {
      const ids = valuesOf({
        batchId: pathId(request, 'batch_id'),
        deliveryId: pathId(request, 'delivery_id'),
      });
      const { organizationId } = request.auth.credentials;
      return await resend({ ...ids, organizationId }, request.app.place, h, deps);
    },
  } satisfies Record<string, Lifecycle.Method>;
}

async function resend(
  which: { readonly organizationId: string; readonly batchId: string; readonly deliveryId: string },
  place: Place,
  h: ResponseToolkit,
  { db, log, client, taskQueue, start }: DeliveryDeps,
): Promise<ResponseObject> {
  const outcome = await place.inTurn(() => resendOwn(db, which));
  switch (outcome.kind) {
    case 'resent': {
      const { organizationId: organization_id, batchId: batch_id, deliveryId: delivery_id } = which;
      // It is committed: if Temporal is away the sweep starts it.
      const started = await start(() => startDelivery(client, taskQueue, which));
      // Unmarked, it is started once more, which changes nothing.
      if (started) await markResendStarted(db, delivery_id).catch(() => {});
      log.info({ organization_id, batch_id, delivery_id, started }, 'delivery resent');
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
