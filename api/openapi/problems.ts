import { AWAY, TITLES } from '../http/errors.ts';
import { type HeaderName, RATE, responseHeaders } from './headers.ts';
import type { JsonObject } from './json-schema.ts';

// How requests fail, for the OpenAPI document (api/README.md, Errors); the 422 is not one of these.

interface ErrorKind {
  readonly status: number;
  readonly description: string;
  readonly always?: readonly HeaderName[];
  readonly some?: readonly HeaderName[];
  /** Each code with what it says to people. */
  readonly codes: Readonly<Record<string, string>>;
  readonly members?: JsonObject;
}

const ERRORS = {
  BadRequest: {
    status: 400,
    description: 'Not well-formed HTTP.',
    codes: { bad_request: 'The request is not well-formed HTTP.' },
  },
  Unauthorized: {
    status: 401,
    description: 'No API key, or none that exists.',
    always: ['WWW-Authenticate'],
    codes: {
      api_key_missing: 'Send your API key as "Authorization: Bearer <API_KEY>" or "X-API-Key: <API_KEY>".',
      api_key_invalid: 'The API key is not valid. Check it for missing characters.',
    },
  },
  InsufficientCredits: {
    status: 402,
    description: 'The submit needs more credits than are available. Nothing was queued.',
    always: RATE,
    codes: {
      insufficient_credits: 'This submit needs 6 credits and 2 are available. Nothing was queued.',
    },
    members: { required: 6, available: 2, shortfall: 4 },
  },
  Forbidden: {
    status: 403,
    description: 'The API key may not be used any more.',
    codes: {
      api_key_revoked: 'This API key was revoked. Use another one, or ask support.',
      api_key_inactive: 'This API key is not active. Use its successor, or ask support.',
    },
  },
  NotFound: {
    status: 404,
    description: 'Not an id of your organization.',
    // A path that no route takes is nobody's request and not counted.
    some: RATE,
    codes: {
      request_not_found: 'No request with this id belongs to your organization.',
      batch_not_found: 'No batch with this id belongs to your organization.',
      delivery_not_found: 'No delivery with this id belongs to this batch of your organization.',
      not_found: 'There is nothing at this path. The API lives under /api/v1.',
    },
  },
  MethodNotAllowed: {
    status: 405,
    description: 'Any other method at this path.',
    always: ['Allow'],
    codes: { method_not_allowed: 'Use GET, HEAD here.' },
  },
  RequestTimeout: {
    status: 408,
    description: 'The request was not there after 10 seconds.',
    codes: { request_timeout: 'The request did not arrive in time.' },
  },
  IdempotencyInProgress: {
    status: 409,
    description: 'The first request with this Idempotency-Key is still running: repeat this one.',
    always: [...RATE, 'Retry-After'],
    codes: { idempotency_in_progress: 'The first request with this Idempotency-Key is still running.' },
  },
  NotResendable: {
    status: 409,
    description: 'This delivery cannot be sent again now.',
    always: RATE,
    codes: {
      delivery_pending: 'This delivery is already on its way, or its result is not there yet.',
      webhooks_suspended:
        'Webhooks of your organization are, or were then, suspended. Poll for results, or ask support.',
    },
  },
  BodyTooLarge: {
    status: 413,
    description: 'The body is larger than 64 KiB.',
    always: RATE,
    codes: { body_too_large: 'The body may have 64 KiB at most.' },
  },
  UnsupportedMediaType: {
    status: 415,
    description: 'The body is not JSON.',
    always: RATE,
    codes: { unsupported_media_type: 'Send the body as application/json.' },
  },
  RateLimited: {
    status: 429,
    description:
      'Too many requests of this key, or too many without a valid key from one address. Not counted.',
    always: ['Retry-After'],
    // Where there is no valid key there is no quota.
    some: RATE,
    codes: { rate_limited: 'This key may send 100 requests in 60 s. Try again in 3 s.' },
  },
  HeadersTooLarge: {
    status: 431,
    description: 'Path and headers are larger than 16 KiB.',
    codes: { headers_too_large: 'The path and the headers may have 16 KiB at most.' },
  },
  ServiceUnavailable: {
    status: 503,
    description:
      'The database is away: nothing was done, unless only its acknowledgement was lost. With the same Idempotency-Key a repeated submit does nothing twice.',
    always: ['Retry-After'],
    some: RATE,
    codes: { service_unavailable: AWAY },
  },
} as const satisfies Record<string, ErrorKind>;

export type ErrorName = keyof typeof ERRORS;

/** The part of an operation's `responses` that says how it fails. */
export function errorResponses(...names: readonly ErrorName[]): JsonObject {
  return Object.fromEntries(
    names.map((name) => [String(ERRORS[name].status), { $ref: `#/components/responses/${name}` }]),
  );
}

/** `components.responses` of all errors but the 422. */
export function problemResponses(): JsonObject {
  return Object.fromEntries(Object.entries(ERRORS).map(([name, kind]) => [name, problemResponse(kind)]));
}

function problemResponse(kind: ErrorKind): JsonObject {
  const { status, description, always, some, codes, members } = kind;
  const title = TITLES[status] ?? '';
  const example = (code: string, detail: string) => ({
    value: { type: 'about:blank', title, status, code, detail, ...members },
  });
  return {
    description,
    headers: responseHeaders(always ?? [], some),
    content: {
      'application/problem+json': {
        schema: {
          $ref: `#/components/schemas/${members ? 'InsufficientCredits' : 'Problem'}`,
          type: 'object',
          properties: { status: { const: status }, code: { enum: Object.keys(codes) } },
        },
        examples: Object.fromEntries(
          Object.entries(codes).map(([code, detail]) => [code, example(code, detail)]),
        ),
      },
    },
  };
}
