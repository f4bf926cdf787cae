import type { ResponseObject, ResponseToolkit, Server } from '@hapi/hapi';
import type { Client } from '@temporalio/client';
import type { Logger } from 'pino';
import type { Database } from '../../db/client.ts';
import { type LoggedDelivery, listBatchDeliveries } from '../../db/webhooks/log.ts';
import { resendOwn } from '../../db/webhooks/resends.ts';
import { problem, unknownBatch } from '../http/errors.ts';
import { UNREAD_BODY } from '../http/json-body.ts';
import { cursorAfter, pageCursor, pageLimit, pathId, valuesOf } from '../http/parameters.ts';
import { startResend } from '../start.ts';

export interface DeliveryDeps {
  readonly db: Database;
  readonly log: Logger;
  readonly client: Client;
  readonly taskQueue: string;
}

/** The customer's log of webhook deliveries: `GET …/deliveries` and `POST …/deliveries/{delivery_id}/resend`. */
export function registerDeliveries(server: Server, deps: DeliveryDeps): void {
  server.route({
    method: 'GET',
    path: '/api/v1/batch/{batch_id}/deliveries',
    handler: async (request, h) => {
      const { organizationId } = request.auth.credentials;
      const { batchId, ...page } = valuesOf({
        batchId: pathId(request, 'batch_id'),
        limit: pageLimit(request),
        after: pageCursor(request),
      });
      const found = await listBatchDeliveries(deps.db, organizationId, batchId, page);
      if (!found) throw unknownBatch();
      const body = {
        deliveries: found.deliveries.map(presented),
        next_cursor: found.next && cursorAfter(found.next),
      };
      return h.response(body);
    },
  });
  server.route({
    method: 'POST',
    path: '/api/v1/batch/{batch_id}/deliveries/{delivery_id}/resend',
    options: { payload: UNREAD_BODY },
    handler: async (request, h) => {
      const ids = valuesOf({
        batchId: pathId(request, 'batch_id'),
        deliveryId: pathId(request, 'delivery_id'),
      });
      return await resend({ ...ids, organizationId: request.auth.credentials.organizationId }, h, deps);
    },
  });
}

async function resend(
  which: { readonly organizationId: string; readonly batchId: string; readonly deliveryId: string },
  h: ResponseToolkit,
  { db, log, client, taskQueue }: DeliveryDeps,
): Promise<ResponseObject> {
  const outcome = await resendOwn(db, which);
  switch (outcome.kind) {
    case 'resent': {
      const { organizationId: organization_id, batchId: batch_id, deliveryId: delivery_id } = which;
      // It is committed: where Temporal is away the sweep starts it.
      const started = await startResend(client, taskQueue, db, outcome.start);
      log.info({ organization_id, batch_id, delivery_id, started }, 'delivery resent');
      return h.response(presented(outcome.delivery)).code(202);
    }
    case 'unknown':
      throw problem(
        404,
        'delivery_not_found',
        'No delivery with this id belongs to this batch of your organization.',
      );
    case 'pending':
      throw problem(
        409,
        'delivery_pending',
        'This delivery is already on its way, or its result is not there yet.',
      );
    case 'suspended':
      throw problem(
        409,
        'webhooks_suspended',
        'Webhooks of your organization are, or were then, suspended. Poll for results, or ask support.',
      );
    default:
      return outcome satisfies never;
  }
}

/** As `deliveryAnswer` of answers.ts describes it. */
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
      // What is no UTF-8, or was cut in the middle of a character, becomes U+FFFD.
      response_excerpt: responseExcerpt?.toString('utf8') ?? null,
    })),
  };
}
