import { batchId, requestId } from './answers.ts';
import * as examples from './examples.ts';
import { type HeaderName, RATE, responseHeaders } from './headers.ts';
import type { JsonObject } from './json-schema.ts';
import { jsonSchema } from './json-schema.ts';
import { parameter } from './parameters.ts';
import { type ErrorName, errorResponses } from './problems.ts';

// The `paths` of the OpenAPI document, in the order of the first table of api/README.md.

const POLLED: readonly HeaderName[] = [...RATE, 'ETag'];
const WAITED: readonly HeaderName[] = ['Retry-After', 'Preference-Applied'];
/** Answered before any route is looked at. */
export const TRANSPORT: readonly ErrorName[] = [
  'BadRequest',
  'MethodNotAllowed',
  'RequestTimeout',
  'HeadersTooLarge',
];
/** Every operation that needs a key fails so. */
export const KEYED: readonly ErrorName[] = ['Unauthorized', 'Forbidden', 'RateLimited', 'ServiceUnavailable'];

export function json(schema: string, examples_?: JsonObject): JsonObject {
  return {
    'application/json': {
      schema: { $ref: `#/components/schemas/${schema}` },
      ...(examples_ ? { examples: examples_ } : {}),
    },
  };
}

/** Where an operation leads to: the one named, with values taken from request or answer. */
export const link = (operationId: string, values: JsonObject, description: string) => ({
  operationId,
  parameters: values,
  description,
});

function submitOperation(id: string, summary: string, body: string, bodyExamples: JsonObject): JsonObject {
  return {
    operationId: id,
    tags: ['Submit'],
    summary,
    parameters: [parameter('Idempotency-Key'), parameter('Prefer')],
    requestBody: { required: true, content: json(body, bodyExamples) },
    responses: {
      202: {
        description: 'Accepted, and the credits held.',
        headers: responseHeaders(RATE, ['Idempotent-Replayed', 'Preference-Applied']),
        content: json('Accepted', examples.acceptedExamples),
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
      ...errorResponses(
        'InsufficientCredits',
        'IdempotencyInProgress',
        'BodyTooLarge',
        'UnsupportedMediaType',
        ...KEYED,
        ...TRANSPORT,
      ),
      422: { $ref: '#/components/responses/Invalid' },
    },
    callbacks: { result: { $ref: '#/components/callbacks/result' } },
  };
}

function pollOperation(
  id: string,
  summary: string,
  idName: 'request_id' | 'batch_id',
  bodyExamples: JsonObject,
): JsonObject {
  const schema = jsonSchema(idName === 'request_id' ? requestId : batchId);
  return {
    operationId: id,
    tags: ['Results'],
    summary,
    parameters: [
      { name: idName, in: 'path', required: true, description: 'As a submit gave it.', schema },
      parameter('If-None-Match'),
      parameter('Prefer'),
    ],
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
      ...errorResponses('NotFound', ...KEYED, ...TRANSPORT),
      422: { $ref: '#/components/responses/Invalid' },
    },
  };
}

/** Needs no key and counts for nobody. */
function openOperation(id: string, summary: string, responses: JsonObject): JsonObject {
  return {
    operationId: id,
    tags: ['Service'],
    summary,
    security: [],
    responses: { ...responses, ...errorResponses(...TRANSPORT) },
  };
}

const health = (description: string, status: string, always: readonly HeaderName[] = []) => ({
  description,
  headers: responseHeaders(always),
  content: json('Health', { usual: { value: { status } } }),
});

const UNCHANGED = {
  description: 'Still what your `If-None-Match` names.',
  headers: responseHeaders(['ETag']),
};

export const paths: JsonObject = {
  '/api/v1/email': {
    post: submitOperation('submitSingle', 'Submit one NPI', 'SingleSubmit', examples.singleExamples),
  },
  '/api/v1/email/bulk': {
    post: submitOperation('submitBulk', 'Submit 1 to 60 NPIs', 'BulkSubmit', examples.bulkExamples),
  },
  '/api/v1/email/{request_id}': {
    get: pollOperation('getRequest', 'Result of one request', 'request_id', examples.requestExamples),
  },
  '/api/v1/batch/{batch_id}': {
    get: pollOperation('getBatch', 'Results of a whole submit', 'batch_id', examples.batchExamples),
  },
  '/api/v1/credits': {
    get: {
      operationId: 'getCredits',
      tags: ['Credits'],
      summary: "The organization's credits",
      responses: {
        200: {
          description: 'As of now.',
          headers: responseHeaders(RATE),
          content: json('Credits', examples.creditsExamples),
        },
        ...errorResponses(...KEYED, ...TRANSPORT),
      },
    },
  },
  '/healthz': {
    get: openOperation('getHealth', 'Whether the process answers', {
      200: health('It does.', 'ok'),
    }),
  },
  '/readyz': {
    get: openOperation('getReadiness', 'Whether requests can be served', {
      200: health('They can.', 'ready'),
      503: health('The database is away or not migrated.', 'database_away', ['Retry-After']),
    }),
  },
  '/openapi.json': {
    get: {
      ...openOperation('getDescription', 'This document', {
        200: {
          description: 'OpenAPI 3.1.',
          headers: responseHeaders(['ETag']),
          content: { 'application/json': { schema: { type: 'object', required: ['openapi', 'paths'] } } },
        },
        304: UNCHANGED,
      }),
      parameters: [parameter('If-None-Match')],
    },
  },
};
