import { randomUUID } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import type { AttemptReason } from '../../db/words.ts';
import { CallFailed, callApi } from '../http/call-api.ts';
import { listed, page, startOf } from './page.ts';
import REASONS from './reasons.json' with { type: 'json' };

// The page of webhook deliveries, and the forms that send deliveries again.

export interface Delivery {
  readonly id: string;
  readonly batch_id: string;
  /** Null if the delivery has all results of the batch. */
  readonly npi: string | null;
  readonly status: string;
  readonly next_attempt_at: string | null;
  readonly attempts: readonly {
    readonly n: number;
    readonly started_at: string;
    readonly status_code: number | null;
    readonly reason: AttemptReason | null;
  }[];
}

const PATH = '/console/deliveries';

export const deliveryHandlers = {
  list: (request, h) => show(request, h, {}),

  resend: async (request, h) => {
    const { list } = request.payload as { readonly list?: unknown };
    const { batch_id = '', delivery_id = '' } = request.params as Record<string, string>;
    const batch = encodeURIComponent(batch_id);
    const delivery = encodeURIComponent(delivery_id);
    const path = `/api/v1/batch/${batch}/deliveries/${delivery}/resend`;
    await callApi(request, path, { method: 'POST' });
    let back = `/console/batches/${batch}#webhook`;
    if (list !== undefined) {
      back = `${PATH}?${new URLSearchParams(String(list))}`;
    }
    return h.redirect(back).code(303);
  },

  resendFailed: async (request, h) => {
    const { failed_since: day = '' } = request.payload as Record<string, string>;
    const body = { failed_since: startOf(day) };
    try {
      const result = await callApi<{ readonly resent: number; readonly more: boolean }>(
        request,
        '/api/v1/deliveries/resend',
        { method: 'POST', body },
      );
      const { resent, more } = result.body;
      return h.redirect(`${PATH}?resent=${resent}${more ? '&more=1' : ''}`).code(303);
    } catch (error) {
      if (!(error instanceof CallFailed) || error.status !== 422) {
        throw error;
      }
      return await show(request, h, { day, ...error.fields() });
    }
  },
} satisfies Record<string, Lifecycle.Method>;

/**
 * Shows the list.
 * @param form what was sent in the form for all failed deliveries, and what is wrong with it
 */
async function show(
  request: Request,
  h: ResponseToolkit,
  form: { readonly day?: string; readonly failed_since?: string },
): Promise<ResponseObject> {
  const { query, body, problems, older } = await listed<{
    readonly deliveries: readonly Delivery[];
  }>(request, '/api/v1/deliveries');
  const { resent, more } = request.query as Record<string, string>;
  const isWrong = body === null || form.failed_since !== undefined;
  return page(request, h, 'deliveries', {
    title: 'Webhooks',
    query,
    problems,
    is: { [query.status]: true },
    deliveries: body?.deliveries.map(listedDelivery) ?? [],
    list: String(new URLSearchParams(query)),
    filtered: Object.values(query).some((value) => value !== ''),
    older: older && `${PATH}?${older}`,
    form,
    notice: noticeOf(resent, more),
    testForm: randomUUID(),
  }).code(isWrong ? 422 : 200);
}

/** Returns the text about a resend that has just been done, or null if there was none. */
function noticeOf(resent = '', more = ''): string | null {
  if (!/^\d{1,3}$/.test(resent)) return null;
  if (resent === '0')
    return 'No delivery has failed for good since then. We still retry pending ones.';
  const text = `Failed deliveries that are sent again: ${resent}.`;
  return more ? `${text} There are more, so send the form again.` : text;
}

/** Returns the words for the result of an attempt. */
export function attemptText(reason: AttemptReason | null): string {
  return reason ? REASONS[reason] : 'Your receiver accepted it.';
}

/** Returns a row of the table of deliveries. */
export function listedDelivery(delivery: Delivery) {
  const { id, batch_id, npi, status, attempts, next_attempt_at: next } = delivery;
  const last = attempts.at(-1);
  let outcome = 'Nothing was sent yet.';
  if (last) outcome = attemptText(last.reason);
  if (last?.status_code) outcome += ` Status ${last.status_code}.`;
  // The API rejects the resend of a delivery that is being sent.
  const isResendable = status === 'failed' || status === 'delivered' || next !== null;
  return {
    id,
    batch_id,
    what: npi ?? 'All results',
    status,
    shownStatus: status === 'pending' && last ? 'retrying' : status,
    attempts: last?.n ?? 0,
    attemptedAt: last?.started_at ?? null,
    outcome,
    next,
    canResend: isResendable,
  };
}
