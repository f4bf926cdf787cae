import { randomUUID } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import type { AttemptReason } from '../../db/words.ts';
import { csvFile } from '../http/csv.ts';
import REASONS from './reasons.json' with { type: 'json' };
import { CallFailed, callApi, keyOf } from './session.ts';
import { type UsageReport, usageView } from './usage.ts';

// The pages of the console. Each reads what it shows from the API (`callApi`).

interface Batch {
  readonly id: string;
  readonly status: string;
  readonly total: number;
  readonly completed_count: number;
  readonly created_at: string;
}

interface Envelope {
  readonly batch: Batch;
  readonly webhook: { readonly url: string; readonly mode: string } | null;
  readonly custom_data: object | null;
  readonly usage: { readonly credits_used: number };
  readonly data: readonly {
    readonly request_id: string;
    readonly npi: string;
    readonly status: string;
    readonly replayed: boolean;
    readonly email: string | null;
    readonly email_type: string | null;
    readonly email_last_validated: string | null;
  }[];
}

interface Delivery {
  readonly id: string;
  /** Null if the delivery has all results of the batch. */
  readonly request_id: string | null;
  readonly status: string;
  readonly attempts: readonly {
    readonly started_at: string;
    readonly status_code: number | null;
    readonly reason: AttemptReason | null;
  }[];
}

interface Credits {
  readonly balance: number;
  readonly total: number;
  readonly used: number;
}

const RECENT = 5;
const LISTED = 50;

export const pageHandlers = {
  overview: async (request, h) => {
    const credits = await callApi<Credits>(request, '/api/v1/credits');
    const { balance, total, used } = credits.body;
    const policy = /;q=(\d+)/.exec(String(credits.headers['ratelimit-policy']));
    const usage = await callApi<UsageReport>(request, '/api/v1/usage');
    const recent = await callApi<{ readonly batches: Batch[] }>(
      request,
      `/api/v1/batches?limit=${RECENT}`,
    );
    return page(request, h, 'overview', {
      title: 'Overview',
      credits: { balance, used, held: total - used - balance },
      perMinute: policy?.[1],
      usage: usageView(usage.body),
      batches: recent.body.batches.map(listedBatch),
    });
  },

  batches: async (request, h) => {
    const query = filterOf(request);
    const search = new URLSearchParams({ limit: String(LISTED) });
    for (const name of ['status', 'npi', 'cursor'] as const)
      if (query[name]) search.set(name, query[name]);
    if (query.since) search.set('since', `${query.since}T00:00:00Z`);
    if (query.until) search.set('until', endOfDay(query.until));
    const { body } = await callApi<{
      readonly batches: Batch[];
      readonly next_cursor: string | null;
    }>(request, `/api/v1/batches?${search}`);
    const older = new URLSearchParams({ ...query, cursor: body.next_cursor ?? '' });
    return page(request, h, 'batches', {
      title: 'Batches',
      query,
      is: { [query.status]: true },
      batches: body.batches.map(listedBatch),
      filtered: Object.values(query).some((value) => value !== ''),
      older: body.next_cursor && `/console/batches?${older}`,
    });
  },

  batch: async (request, h) => {
    const path = batchPath(request);
    const { body } = await callApi<Envelope>(request, path);
    let deliveries: readonly Delivery[] = [];
    if (body.webhook) {
      const list = await callApi<{ readonly deliveries: Delivery[] }>(
        request,
        `${path}/deliveries?limit=100`,
      );
      deliveries = list.body.deliveries;
    }
    return page(request, h, 'batch', {
      ...body,
      title: body.batch.id,
      createdAt: shownTime(body.batch.created_at),
      running: body.batch.status !== 'completed',
      customData: body.custom_data && JSON.stringify(body.custom_data, null, 2),
      data: body.data.map((result) => ({
        ...result,
        validated: shownTime(result.email_last_validated),
      })),
      deliveries: deliveries.map((delivery) => listedDelivery(delivery, body)),
    });
  },

  showSubmit: (request, h) =>
    page(request, h, 'submit', { title: 'Find emails', idempotencyKey: randomUUID() }),

  submit: async (request, h) => {
    const form = request.payload as Readonly<Record<string, unknown>>;
    const text = String(form.npis ?? '');
    const requestedType = String(form.type ?? '');
    // Sending the same form twice has the same key, so it creates one batch.
    const idempotencyKey = String(form.idempotency_key ?? '');
    const npis = text.split(/[\s,;]+/).filter((npi) => npi !== '');
    const body = { npis, enrichment_email_type: requestedType };
    try {
      const submit = { idempotencyKey, body };
      const answer = await callApi<{ readonly batch_id: string }>(
        request,
        '/api/v1/email/bulk',
        { method: 'POST', submit },
      );
      return h.redirect(`/console/batches/${answer.body.batch_id}`).code(303);
    } catch (error) {
      if (!(error instanceof CallFailed) || ![402, 422].includes(error.status))
        throw error;
      const context = { title: 'Find emails', idempotencyKey: randomUUID(), text };
      const isType = { [requestedType]: true };
      const problem = error.text((loc) => npis[Number(loc[2])] ?? String(loc.at(-1)));
      const shown = { ...context, isType, problem };
      return page(request, h, 'submit', shown).code(error.status);
    }
  },

  results: async (request, h) => {
    const { body } = await callApi<Envelope>(request, batchPath(request));
    return csvFile(h, `${body.batch.id}.csv`, COLUMNS, body.data);
  },

  resend: async (request, h) => {
    const { batch_id, delivery_id } = request.params as Ids;
    const delivery = `${batchPath(request)}/deliveries/${encodeURIComponent(delivery_id)}`;
    await callApi(request, `${delivery}/resend`, { method: 'POST' });
    return h.redirect(`/console/batches/${batch_id}#webhook`).code(303);
  },
} satisfies Record<string, Lifecycle.Method>;

type Ids = Readonly<Record<'batch_id' | 'delivery_id', string>>;

/** Returns the path at the API of the batch that a page is about. */
function batchPath(request: Request): string {
  return `/api/v1/batch/${encodeURIComponent((request.params as Ids).batch_id)}`;
}

/** Renders a page for the session of a request. */
function page(
  request: Request,
  h: ResponseToolkit,
  template: 'overview' | 'submit' | 'batches' | 'batch',
  context: object,
): ResponseObject {
  const isSandbox = keyOf(request).startsWith('npe_test_');
  const on = { [template === 'batch' ? 'batches' : template]: true };
  return h.view(template, { ...context, on, session: { isSandbox } });
}

const FILTERS = ['status', 'npi', 'since', 'until', 'cursor'] as const;

/** Returns the filters of the list of batches. A missing filter is empty. */
function filterOf(request: Request): Record<(typeof FILTERS)[number], string> {
  const entries = FILTERS.map((name) => [name, String(request.query[name] ?? '').trim()]);
  return Object.fromEntries(entries);
}

/** Returns the start of the next UTC day, because `until` of the API excludes its time. */
function endOfDay(day: string): string {
  const at = Date.parse(`${day}T00:00:00Z`);
  // The API rejects an invalid day, and says what is wrong.
  return Number.isNaN(at) ? day : new Date(at + 86_400_000).toISOString();
}

function listedBatch(batch: Batch) {
  return { ...batch, createdAt: shownTime(batch.created_at) };
}

function listedDelivery(delivery: Delivery, { data }: Envelope) {
  const { id, request_id, status, attempts } = delivery;
  const last = attempts.at(-1);
  let outcome = 'Nothing was sent yet.';
  if (last) outcome = last.reason ? REASONS[last.reason] : 'Your receiver accepted it.';
  if (last?.status_code) outcome += ` Status ${last.status_code}.`;
  return {
    id,
    what: data.find((result) => result.request_id === request_id)?.npi ?? 'All results',
    status,
    attemptedAt: shownTime(last?.started_at ?? null),
    outcome,
    canResend: status === 'failed' || status === 'delivered',
  };
}

/** Returns a time like `2026-01-05 10:00 UTC`, or an empty text. */
function shownTime(at: string | null): string {
  return at === null ? '' : `${at.slice(0, 16).replace('T', ' ')} UTC`;
}

const COLUMNS = [
  'npi',
  'status',
  'email',
  'email_type',
  'email_last_validated',
  'replayed',
] as const;
