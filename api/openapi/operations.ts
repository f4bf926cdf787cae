import type { Schema } from 'joi';
import { CURSOR, PAGE } from '../http/parameters.ts';
import { IDEMPOTENCY_KEY } from '../routes/submit.ts';
import type { OperationId } from '../routes.ts';
import examples from './examples.json' with { type: 'json' };
import { type HeaderName, RATE, responseHeaders } from './headers.ts';
import { batchId, deliveryId, type JsonObject, jsonSchema, requestId } from './schemas.ts';

// What the OpenAPI document says of each operation beside its route (routes.ts) and its errors (problems.ts).

/** `components.parameters`: request headers, and the query of lists. */
export const parameters = {
  'Idempotency-Key': {
    name: 'Idempotency-Key',
    in: 'header',
    description:
      'Unique for what you submit, such as a UUID: a retry with the same key and the same meaning of the body gets the stored 202 for 24 hours, and does nothing.',
    schema: { type: 'string', pattern: IDEMPOTENCY_KEY.source },
    example: '7f6c0c6e-2d0f-4f3e-8e39-4d7d7b4b2f11',
  },
  'If-None-Match': {
    name: 'If-None-Match',
    in: 'header',
    description: 'The `ETag` you have: 304 if it is still the same.',
    schema: { type: 'string' },
    example: '"Zk3v1Qx9"',
  },
  Prefer: {
    name: 'Prefer',
    in: 'header',
    description:
      '`wait=N` (RFC 7240) holds the answer for up to N seconds, at most 55: of a poll until the state changes, of a submit until the batch is completed. Anything else is ignored.',
    schema: { type: 'string' },
    example: 'wait=1',
  },
  limit: {
    name: 'limit',
    in: 'query',
    description: 'How many items the page may hold.',
    schema: { type: 'integer', minimum: PAGE.least, maximum: PAGE.most, default: PAGE.usual },
    example: 20,
  },
  cursor: {
    name: 'cursor',
    in: 'query',
    description: '`next_cursor` of the page before; without it the first page.',
    schema: { type: 'string', pattern: CURSOR },
    example: '01jd9x6k2wf3r8t0z5q7w4m1hd',
  },
} as const;

const parameter = (name: keyof typeof parameters) => ({ $ref: `#/components/parameters/${name}` });

/** The 422 of an operation that takes parameters or a body. */
const INVALID = { 422: { $ref: '#/components/responses/Invalid' } };

export function json(schema: string, shown?: JsonObject): JsonObject {
  return {
    'application/json': {
      schema: { $ref: `#/components/schemas/${schema}` },
      ...(shown ? { examples: shown } : {}),
    },
  };
}

/** Where an operation leads to: the one named, with values taken from request or answer. */
const link = (operationId: OperationId, values: JsonObject, description: string) => ({
  operationId,
  parameters: values,
  description,
});

const idParameter = (name: string, schema: Schema, description = 'As a submit gave it.') => ({
  name,
  in: 'path',
  required: true,
  description,
  schema: jsonSchema(schema),
});

const POLLED: readonly HeaderName[] = [...RATE, 'ETag'];
const WAITED: readonly HeaderName[] = ['Retry-After', 'Preference-Applied'];

function submitOperation(summary: string, body: string, bodyExamples: JsonObject) {
  return {
    tags: ['Submit'],
    summary,
    parameters: [parameter('Idempotency-Key'), parameter('Prefer')],
    requestBody: { required: true, content: json(body, bodyExamples) },
    responses: {
      202: {
        description: 'Accepted, and the credits held.',
        headers: responseHeaders(RATE, ['Idempotent-Replayed', 'Preference-Applied']),
        content: json('Accepted', examples.accepted),
        links: {
          request: link(
            'getRequest',
            { request_id: '$response.body#/requests/0/request_id' },
            'Its first result.',
          ),
          batch: link('getBatch', { batch_id: '$response.body#/batch_id' }, 'All of its results.'),
          deliveries: link(
            'getDeliveries',
            { batch_id: '$response.body#/batch_id' },
            'What was sent to its webhook.',
          ),
        },
      },
      ...INVALID,
    },
    callbacks: { result: { $ref: '#/components/callbacks/result' } },
  };
}

function pollOperation(id: 'getRequest' | 'getBatch', summary: string, bodyExamples: JsonObject) {
  const [idName, schema] =
    id === 'getRequest' ? (['request_id', requestId] as const) : (['batch_id', batchId] as const);
  return {
    tags: ['Results'],
    summary,
    parameters: [idParameter(idName, schema), parameter('If-None-Match'), parameter('Prefer')],
    responses: {
      200: {
        description: 'The state as of now. `Retry-After` until it is final.',
        headers: responseHeaders(POLLED, WAITED),
        content: json('Envelope', bodyExamples),
        links: {
          request: link('getRequest', { request_id: '$response.body#/data/0/request_id' }, 'One result.'),
          batch: link('getBatch', { batch_id: '$response.body#/batch/id' }, 'The whole batch.'),
          unchanged: link(
            id,
            { [idName]: `$request.path.${idName}`, 'If-None-Match': '$response.header.ETag' },
            '304 as long as nothing has changed.',
          ),
        },
      },
      304: {
        description: 'Still what your `If-None-Match` names.',
        headers: responseHeaders(POLLED, WAITED),
      },
      ...INVALID,
    },
  };
}

const health = (description: string, status: string, always: readonly HeaderName[] = []) => ({
  description,
  headers: responseHeaders(always),
  content: json('Health', { usual: { value: { status } } }),
});

export const operations = {
  submitSingle: submitOperation('Submit one NPI', 'SingleSubmit', examples.single),
  submitBulk: submitOperation('Submit 1 to 60 NPIs', 'BulkSubmit', examples.bulk),
  getRequest: pollOperation('getRequest', 'Result of one request', examples.request),
  getBatch: pollOperation('getBatch', 'Results of a whole submit', examples.batch),
  getDeliveries: {
    tags: ['Deliveries'],
    summary: 'Webhook deliveries of a submit, with every attempt',
    description:
      'In the order of the submit, page by page. A page holds the state as of its reading; deliveries are neither added nor moved later, so that following `next_cursor` shows each exactly once.',
    parameters: [idParameter('batch_id', batchId), parameter('limit'), parameter('cursor')],
    responses: {
      200: {
        description: 'One page. `next_cursor` leads to the next.',
        headers: responseHeaders(RATE),
        content: json('Deliveries', examples.deliveries),
        links: {
          next: link(
            'getDeliveries',
            { batch_id: '$request.path.batch_id', cursor: '$response.body#/next_cursor' },
            'The next page.',
          ),
          resend: link(
            'resendDelivery',
            { batch_id: '$request.path.batch_id', delivery_id: '$response.body#/deliveries/0/id' },
            'Send the first of them again.',
          ),
        },
      },
      ...INVALID,
    },
  },
  resendDelivery: {
    tags: ['Deliveries'],
    summary: 'Send a delivery again',
    description:
      'One that is decided, or that waits for its next attempt: with its old `webhook-id`, the result as it is then and the whole schedule of attempts. Asked twice, it is sent once: the second answer is 409 `delivery_pending`. Takes no body.',
    parameters: [
      idParameter('batch_id', batchId),
      idParameter('delivery_id', deliveryId, "`id` of a delivery of this batch: its attempts' `webhook-id`."),
    ],
    responses: {
      202: {
        description: 'It will be sent: `pending` until it is decided anew.',
        headers: responseHeaders(RATE),
        content: json('Delivery', examples.resend),
      },
      ...INVALID,
    },
  },
  getCredits: {
    tags: ['Credits'],
    summary: "The organization's credits",
    responses: {
      200: {
        description: 'As of now.',
        headers: responseHeaders(RATE),
        content: json('Credits', examples.credits),
      },
    },
  },
  getHealth: {
    tags: ['Service'],
    summary: 'Whether the process answers',
    responses: { 200: health('It does.', 'ok') },
  },
  getReadiness: {
    tags: ['Service'],
    summary: 'Whether requests can be served',
    responses: {
      200: health('They can.', 'ready'),
      503: health('The database is away or not migrated, or workers are elsewhere only.', 'database_away', [
        'Retry-After',
      ]),
    },
  },
  getDescription: {
    tags: ['Service'],
    summary: 'This document',
    parameters: [parameter('If-None-Match')],
    responses: {
      200: {
        description: 'OpenAPI 3.1.',
        headers: responseHeaders(['ETag']),
        content: { 'application/json': { schema: { type: 'object', required: ['openapi', 'paths'] } } },
      },
      304: { description: 'Still what your `If-None-Match` names.', headers: responseHeaders(['ETag']) },
    },
  },
};
