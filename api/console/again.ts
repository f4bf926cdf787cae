import type { Lifecycle, Request } from '@hapi/hapi';
import { PRICES } from '../../db/accounts/credits.ts';
import type { Database } from '../../db/connection/client.ts';
import { isId } from '../../db/connection/ids.ts';
import { type FailedPart, readFailed } from '../../db/requests/batches.ts';
import type { RequestedType } from '../../db/words.ts';
import { callApi } from '../http/call-api.ts';
import { nameIn } from './name.ts';

// The button on the page of a batch that looks up again what failed, as a new batch. An upload has
// its own button, which adds to the upload (uploads.ts).

const BULK = { method: 'POST', path: '/api/v1/email/bulk' } as const;

/** Returns the Idempotency-Key of the batch that looks up again what failed in a batch. */
function againKey(batchId: string): string {
  return `again-${batchId}`;
}

/** Reads what failed in the batch of a page, or null if nothing can be looked up again. */
export async function failedIn(
  db: Database,
  request: Request,
): Promise<FailedPart | null> {
  const { organizationId } = request.auth.credentials;
  const batchId = String(request.params.batch_id);
  if (!isId('bat', batchId)) return null;
  const key = againKey(batchId);
  return await readFailed(db, organizationId, batchId, { ...BULK, key });
}

/** Returns the number of failed NPIs and the highest price of new lookups, for a button. */
export function offerOf(count: number, requestedType: RequestedType) {
  return { count, credits: count * PRICES[requestedType] };
}

/** Returns the batch whose failed NPIs a batch looks up again, or null. */
export function againOf(customData: object | null): string | null {
  const { again_of: id }: Record<string, unknown> = { ...customData };
  return typeof id === 'string' && isId('bat', id) ? id : null;
}

/**
 * Returns the handler that submits what failed in a batch as a new batch. Sending the form again
 * leads to the same batch, within a day (`Idempotency-Key`).
 */
export function againHandler(db: Database): Lifecycle.Method {
  return async (request, h) => {
    const batchId = String(request.params.batch_id);
    const part = await failedIn(db, request);
    // The page says what is wrong.
    if (!part)
      return h.redirect(`/console/batches/${encodeURIComponent(batchId)}`).code(303);
    const name = nameIn(part.customData) || undefined;
    const body = {
      npis: part.npis,
      enrichment_email_type: part.requestedType,
      custom_data: { name, again_of: batchId },
    };
    const headers = { 'idempotency-key': againKey(batchId) };
    const call = { method: BULK.method, body, headers };
    const result = await callApi<{ readonly batch_id: string }>(request, BULK.path, call);
    return h.redirect(`/console/batches/${result.body.batch_id}`).code(303);
  };
}
