import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { listBatches } from '../../db/requests/batches.ts';
import { batchObject } from '../../db/requests/envelope.ts';
import { noteDeliveryLook } from '../../db/webhooks/due.ts';
import {
  LISTED_CHARACTERS,
  type LoggedDelivery,
  listBatchDeliveries,
  listOrganizationDeliveries,
  readOwnDelivery,
} from '../../db/webhooks/log.ts';
import { readResent, resend } from '../../db/webhooks/resends.ts';
import { startDelivery } from '../../workflows/starts.ts';
import { readBody, validBody } from '../http/json-body.ts';
import { readInTurn } from '../http/turn-queue.ts';
import { unknownId } from '../http/unknown-id.ts';
import {
  ALL_DELIVERIES_QUERY,
  BATCHES_QUERY,
  DELIVERIES_QUERY,
  DELIVERY_QUERY,
  idsOf,
  listedBy,
  resendBody,
} from '../http/validation.ts';
import { problem } from '../problems.ts';
import type { SubmitDeps } from './submit.ts';

type HistoryDeps = Pick<SubmitDeps, 'db' | 'log' | 'starter'>;

/**
 * Returns the handlers that list an organization's batches and webhook deliveries, and the handler
 * that resends a delivery.
 */
export function historyHandlers(deps: HistoryDeps) {
  const { db } = deps;
  return {
    getBatches: async (request) => {
      const { limit, cursor, ...filter } = listedBy(request, BATCHES_QUERY);
      const page = { limit, after: cursor && `bat_${cursor}` };
      const { batches, next } = await readInTurn(request, (organizationId) =>
        listBatches(db, organizationId, filter, page),
      );
      return {
        batches: batches.map(batchObject),
        next_cursor: next?.slice('bat_'.length) ?? null,
      };
    },
    getDeliveries: async (request) => {
      const { batch_id, limit, cursor } = listedBy(request, DELIVERIES_QUERY);
      const page = { limit, after: cursor && `msg_${cursor}` };
      const found = await readInTurn(request, async (organizationId) => {
        const listed = await listBatchDeliveries(db, organizationId, batch_id, page);
        if (listed) return listed;
        throw await unknownId(db, 'batch_not_found', organizationId, batch_id);
      });
      return pageOf(found);
    },
    getAllDeliveries: async (request) => {
      const { limit, cursor, ...filter } = listedBy(request, ALL_DELIVERIES_QUERY);
      const page = { limit, after: cursor && `msg_${cursor}` };
      const found = await readInTurn(request, (organizationId) =>
        listOrganizationDeliveries(db, organizationId, filter, page),
      );
      return pageOf(found);
    },
    getDelivery: async (request) => {
      const { batch_id, delivery_id, before } = listedBy(request, DELIVERY_QUERY);
      const found = await readInTurn(request, async (organizationId) => {
        const which = { organizationId, batchId: batch_id, deliveryId: delivery_id };
        const delivery = await readOwnDelivery(db, which, before);
        if (delivery) return delivery;
        throw await unknownId(db, 'delivery_not_found', organizationId, batch_id);
      });
      return presented(found, Number.POSITIVE_INFINITY);
    },
    resendDelivery: (request, h) => resendOne(request, h, deps),
    resendFailedDeliveries: (request, h) => resendFailed(request, h, deps),
  } satisfies Record<string, Lifecycle.Method>;
}

async function resendOne(
  request: Request,
  h: ResponseToolkit,
  { db, log, starter }: HistoryDeps,
): Promise<ResponseObject> {
  const { batch_id, delivery_id } = idsOf(request);
  const { organizationId } = request.auth.credentials;
  const owner = { organizationId, batchId: batch_id };
  const outcome = await request.app.place.inTurn(async () => {
    const one = { kind: 'one', deliveryId: delivery_id, owner } as const;
    const resent = await resend(db, one, 'customer');
    if (resent.kind !== 'unknown') return resent;
    throw await unknownId(db, 'delivery_not_found', organizationId, batch_id);
  });
  switch (outcome.kind) {
    case 'resent':
      break;
    case 'pending':
      throw problem('delivery_pending');
    case 'suspended':
      throw problem('webhooks_suspended');
    case 'limited':
      throw problem('resend_limited', { wait: Math.ceil(outcome.waitMs / 1000) });
    default:
      return outcome satisfies never;
  }
  const { delivery, npis } = await readResent(db, delivery_id);
  // The resend is committed. If Temporal is down, the reconciler's sweep starts its workflow later.
  const started = await starter.start((...temporal) =>
    startDelivery(...temporal, { ...owner, deliveryId: delivery_id, npis }),
  );
  if (started) {
    // If this update fails, the reconciler's sweep starts the workflow again. That does no harm.
    const mark = { deliveryId: delivery_id, resends: delivery.resends };
    await noteDeliveryLook(db, mark).catch(() => {});
  }
  log.info(
    { organization_id: organizationId, batch_id, delivery_id, started },
    'delivery resent',
  );
  return h.response(presented(delivery, LISTED_CHARACTERS)).code(202);
}

async function resendFailed(
  request: Request,
  h: ResponseToolkit,
  { db, log }: HistoryDeps,
): Promise<ResponseObject> {
  const { organizationId } = request.auth.credentials;
  const bytes = await readBody(request.raw.req);
  const outcome = await request.app.place.inTurn(async () => {
    const { failed_since: since } = validBody(request, bytes, resendBody);
    const failed = { kind: 'failed', organizationId, since, until: null } as const;
    return await resend(db, failed, 'customer');
  });
  if (outcome.kind !== 'resent') throw problem('webhooks_suspended');
  // The reconciler's next sweep starts the workflows.
  const { more } = outcome;
  const resent = outcome.ids.length;
  log.info({ organization_id: organizationId, resent }, 'failed deliveries resent');
  return h.response({ resent, more }).code(202);
}

/** Returns a page of a list of deliveries as JSON. */
function pageOf(page: {
  readonly deliveries: readonly LoggedDelivery[];
  readonly next: string | null;
}): object {
  return {
    deliveries: page.deliveries.map((delivery) => presented(delivery, LISTED_CHARACTERS)),
    next_cursor: page.next?.slice('msg_'.length) ?? null,
  };
}

/**
 * Returns a delivery as JSON, in the form of `deliveryResponse` in openapi/schemas.ts.
 * @param longest how many characters of a receiver's response are shown
 */
function presented(delivery: LoggedDelivery, longest: number): object {
  return {
    id: delivery.id,
    batch_id: delivery.batchId,
    request_id: delivery.requestId,
    npi: delivery.npi,
    status: delivery.state,
    created_at: delivery.createdAt,
    decided_at: delivery.decidedAt,
    next_attempt_at: delivery.nextAttemptAt,
    attempts: delivery.log.map(
      ({ n, startedAt, durationMs, statusCode, reason, responseExcerpt }) => ({
        n,
        started_at: startedAt,
        duration_ms: durationMs,
        status_code: statusCode,
        reason,
        response_excerpt: responseExcerpt && excerptText(responseExcerpt, longest),
      }),
    ),
  };
}

/**
 * Matches control characters (C0, DEL, and C1), except tabs and line feeds. They are replaced
 * because they take six bytes in JSON, and terminals treat some of them as commands.
 */
const CONTROL_CHARACTERS = /(?![\t\n])\p{Cc}/gu;

/**
 * Converts the stored beginning of a receiver's response to text. Every line break becomes a line
 * feed. Invalid UTF-8, a character that is cut off at the end, and control characters become
 * U+FFFD.
 */
function excerptText(bytes: Buffer, longest: number): string {
  const text = bytes.toString('utf8').slice(0, longest).toWellFormed();
  return text.replaceAll(/\r\n?/g, '\n').replaceAll(CONTROL_CHARACTERS, '\ufffd');
}
