import type { JsonObject } from './schemas.ts';

// One story told by all examples of the OpenAPI document: a bulk submit of two NPIs, one found, one running.

const BATCH_ID = 'bat_01jd9x6k2tf3r8t0z5q7w4m1ha';
const FIRST = { npi: '1234567893', request_id: 'req_01jd9x6k2vfr8at0z5q7w4m1hb' };
const SECOND = { npi: '2000000010', request_id: 'req_01jd9x6k2vfr8at0z5q7w4m1hc' };
const WEBHOOK = { url: 'https://example.com/hooks/email', mode: 'real-time' };
const CUSTOM_DATA = { order: 17 };

const pollUrl = ({ npi, request_id }: typeof FIRST) => ({
  npi,
  request_id,
  poll_url: `/api/v1/email/${request_id}`,
});

const batch = (status: string, total: number, completedCount: number) => ({
  id: BATCH_ID,
  status,
  total,
  completed_count: completedCount,
  created_at: '2026-01-05T10:00:00.000Z',
  updated_at: '2026-01-05T10:00:07.250Z',
});

const found = {
  ...FIRST,
  status: 'completed',
  replayed: false,
  email_type: 'professional',
  email: 'ada.practice@example.com',
  email_last_validated: '2026-01-05T10:00:07.000Z',
  email_status: 'valid',
};

const without = (request: typeof FIRST, status: string) => ({
  ...request,
  status,
  replayed: false,
  email_type: null,
  email: null,
  email_last_validated: null,
  email_status: null,
});

type Examples = { readonly [name: string]: { readonly summary: string; readonly value: JsonObject } };

export const singleExamples: Examples = {
  smallest: { summary: 'One NPI, any type of email', value: { npi: FIRST.npi } },
  everything: {
    summary: 'A professional email, sent to a webhook',
    value: {
      npi: FIRST.npi,
      enrichment_email_type: 'professional',
      webhook: { url: WEBHOOK.url },
      custom_data: CUSTOM_DATA,
    },
  },
};

export const bulkExamples: Examples = {
  smallest: { summary: 'Two NPIs', value: { npis: [FIRST.npi, SECOND.npi] } },
  everything: {
    summary: 'Personal emails, one delivery for all',
    value: {
      npis: [FIRST.npi, SECOND.npi],
      enrichment_email_type: 'personal',
      webhook: { url: WEBHOOK.url, mode: 'batch' },
      custom_data: CUSTOM_DATA,
    },
  },
};

export const acceptedExamples: Examples = {
  queued: {
    summary: 'Two requests were queued',
    value: { batch_id: BATCH_ID, status: 'in-progress', requests: [pollUrl(FIRST), pollUrl(SECOND)] },
  },
  replayed: {
    summary: 'Answered at once from an earlier result',
    value: { batch_id: BATCH_ID, status: 'completed', requests: [pollUrl(FIRST)] },
  },
};

const real = (one: typeof FIRST & JsonObject, status: string, completedCount: number, used: number) => ({
  batch: batch(status, 1, completedCount),
  webhook: null,
  custom_data: null,
  usage: { credits_used: used, balance: 100 - used },
  data: [one],
});

export const requestExamples: Examples = {
  running: {
    summary: 'Still being resolved',
    value: real(without(FIRST, 'in-progress'), 'in-progress', 0, 0),
  },
  found: { summary: 'An email was found', value: real(found, 'completed', 1, 1) },
  not_found: {
    summary: 'No email, nothing charged',
    value: real(without(FIRST, 'not_found'), 'completed', 1, 0),
  },
};

export const batchExamples: Examples = {
  running: {
    summary: 'One of two is final',
    value: {
      batch: batch('in-progress', 2, 1),
      webhook: { ...WEBHOOK, status: 'pending' },
      custom_data: CUSTOM_DATA,
      usage: { credits_used: 1, balance: 98 },
      data: [found, without(SECOND, 'in-progress')],
    },
  },
};

export const deliveryExamples: Examples = {
  'real-time': {
    summary: 'The first of two has finished',
    value: {
      batch: batch('in-progress', 2, 1),
      webhook: { ...WEBHOOK, status: 'pending' },
      custom_data: CUSTOM_DATA,
      usage: { credits_used: 1, balance: 98 },
      data: [found],
    },
  },
  batch: {
    summary: 'Both have finished',
    value: {
      batch: batch('completed', 2, 2),
      webhook: { url: WEBHOOK.url, mode: 'batch', status: 'pending' },
      custom_data: CUSTOM_DATA,
      usage: { credits_used: 1, balance: 99 },
      data: [found, without(SECOND, 'not_found')],
    },
  },
};

const failedDelivery = {
  id: 'msg_01jd9x6k2wf3r8t0z5q7w4m1hd',
  request_id: FIRST.request_id,
  status: 'failed',
  created_at: '2026-01-05T10:00:00.000Z',
  decided_at: '2026-01-05T10:00:07.900Z',
  next_attempt_at: null,
  attempts: [
    {
      n: 1,
      started_at: '2026-01-05T10:00:07.300Z',
      duration_ms: 85,
      status_code: 410,
      reason: 'gone',
      response_excerpt: 'No longer here.',
    },
  ],
};

export const deliveriesExamples: Examples = {
  failed: {
    summary: 'One delivery that its receiver ended, and one that waits for its result',
    value: {
      deliveries: [
        failedDelivery,
        {
          id: 'msg_01jd9x6k2wf3r8t0z5q7w4m1he',
          request_id: SECOND.request_id,
          status: 'pending',
          created_at: '2026-01-05T10:00:00.000Z',
          decided_at: null,
          next_attempt_at: null,
          attempts: [],
        },
      ],
      next_cursor: '01jd9x6k2wf3r8t0z5q7w4m1he',
    },
  },
  none: { summary: 'A submit without a webhook', value: { deliveries: [], next_cursor: null } },
};

export const resendExamples: Examples = {
  again: {
    summary: 'To be sent again, with the same webhook-id',
    value: { ...failedDelivery, status: 'pending', decided_at: null },
  },
};

export const creditsExamples: Examples = {
  usual: { summary: 'One credit charged, one held', value: { balance: 98, total: 100, used: 1 } },
};

export const invalidExamples: Examples = {
  two_problems: {
    summary: 'Every problem at once, in field order',
    value: {
      detail: [
        { loc: ['body', 'npi'], msg: 'Field required', type: 'missing' },
        { loc: ['body', 'webhook', 'url'], msg: "URL scheme should be 'https'", type: 'url_scheme' },
      ],
    },
  },
};
