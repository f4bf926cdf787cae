import type { JsonObject } from './schemas.ts';

// The response headers of the OpenAPI document.

const header = (description: string, schema: JsonObject, example: string | number) => ({
  description,
  required: true,
  schema,
  example,
});
const SECONDS = { type: 'integer', minimum: 1 };

/** `components.headers`: what an answer that refers to them always carries. */
export const headers = {
  'X-Request-Id': header(
    'Of this exchange: quote it to support. A harmless one that was sent is kept.',
    { type: 'string', pattern: '^[A-Za-z0-9_.:-]{1,128}$' },
    '4f9c1c1e-8a52-4f0f-9b64-1c0f5be7f3f5',
  ),
  'RateLimit-Policy': header(
    'The quota (q) and its window in seconds (w).',
    { type: 'string', pattern: '^"default";q=[0-9]+;w=[0-9]+$' },
    '"default";q=100;w=60',
  ),
  RateLimit: header(
    'What is left (r) and the seconds until the whole quota is back (t).',
    { type: 'string', pattern: '^"default";r=[0-9]+;t=[0-9]+$' },
    '"default";r=99;t=60',
  ),
  'X-RateLimit-Limit': header('The quota.', { type: 'integer', minimum: 1 }, 100),
  'X-RateLimit-Remaining': header('What is left of it.', { type: 'integer', minimum: 0 }, 99),
  'X-RateLimit-Reset': header(
    'When the whole quota is back, in epoch seconds.',
    { type: 'integer', minimum: 1 },
    1767607260,
  ),
  'Retry-After': header('Seconds to wait.', SECONDS, 5),
  ETag: header('Of the state; changes with it.', { type: 'string', pattern: '^"[!#-~]+"$' }, '"Zk3v1Qx9"'),
  'Cache-Control': header('`no-store`, but for this document.', { type: 'string' }, 'no-store'),
  'X-Content-Type-Options': header(
    'The body is what `Content-Type` says.',
    { type: 'string', enum: ['nosniff'] },
    'nosniff',
  ),
  'Idempotent-Replayed': header(
    'Sent if the Idempotency-Key was used before with this body.',
    { type: 'string', enum: ['true'] },
    'true',
  ),
  'Preference-Applied': header(
    'Sent if the answer was held, or would have been (RFC 7240).',
    { type: 'string', pattern: '^wait=[0-9]+$' },
    'wait=30',
  ),
  'WWW-Authenticate': header('How to authenticate.', { type: 'string', pattern: '^Bearer' }, 'Bearer'),
  Allow: header('The methods of this path.', { type: 'string' }, 'GET, HEAD'),
} as const;

export type HeaderName = keyof typeof headers;

/** Every counted answer carries these, the errors included. */
export const RATE: readonly HeaderName[] = [
  'RateLimit-Policy',
  'RateLimit',
  'X-RateLimit-Limit',
  'X-RateLimit-Remaining',
  'X-RateLimit-Reset',
];

const EVERY: readonly HeaderName[] = ['X-Request-Id', 'Cache-Control', 'X-Content-Type-Options'];

/** The `headers` of one response: beside what every answer carries, those of all such answers and those of some. */
export function responseHeaders(always: readonly HeaderName[], some: readonly HeaderName[] = []): JsonObject {
  return {
    ...Object.fromEntries(
      [...EVERY, ...always].map((name) => [name, { $ref: `#/components/headers/${name}` }]),
    ),
    ...Object.fromEntries(some.map((name) => [name, { ...headers[name], required: false }])),
  };
}
