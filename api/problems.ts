import type { OperationId } from './routes.ts';

/** One way in which requests fail: a row of the table below. */
export interface ProblemKind {
  readonly status: number;
  readonly title: string;
  /** Which operations answer so; `unexpected`: none is meant to. */
  readonly at: 'all' | 'keyed' | 'unexpected' | readonly OperationId[];
  /** For the OpenAPI document. */
  readonly description: string;
  /** Headers beside what every answer has. */
  readonly headers?: readonly ('Allow' | 'Retry-After' | 'WWW-Authenticate')[];
  /** Whether such answers carry the headers of the rate limit. */
  readonly counted?: 'always' | 'sometimes';
  /** Each stable code with what it says to people; `{name}` is a value given to `problem`. */
  readonly codes: Readonly<Record<string, string>>;
  /** Such values, for the OpenAPI document. */
  readonly example?: Values;
  /** The values are also members of the body. */
  readonly hasMembers?: true;
}

type Values = Readonly<Record<string, string | number>>;

/** Every error but the 422: thrown by its code, described in the OpenAPI document, listed in api/README.md, Errors. */
export const PROBLEMS = {
  BadRequest: {
    status: 400,
    title: 'Bad Request',
    at: 'all',
    description: 'Not well-formed HTTP.',
    codes: { bad_request: 'The request is not well-formed HTTP.' },
  },
  Unauthorized: {
    status: 401,
    title: 'Unauthorized',
    at: 'keyed',
    description: 'No API key, or none that exists.',
    headers: ['WWW-Authenticate'],
    codes: {
      api_key_missing: 'Send your API key as "Authorization: Bearer <API_KEY>" or "X-API-Key: <API_KEY>".',
      api_key_invalid: 'The API key is not valid. Check it for missing characters.',
    },
  },
  InsufficientCredits: {
    status: 402,
    title: 'Payment Required',
    at: ['submitSingle', 'submitBulk'],
    description: 'The submit needs more credits than are available. Nothing was queued.',
    counted: 'always',
    codes: {
      insufficient_credits:
        'This submit needs {required} credits and {available} are available. Nothing was queued.',
    },
    example: { required: 6, available: 2, shortfall: 4 },
    hasMembers: true,
  },
  Forbidden: {
    status: 403,
    title: 'Forbidden',
    at: 'keyed',
    description: 'The API key may not be used any more.',
    codes: {
      api_key_revoked: 'This API key was revoked. Use another one, or ask support.',
      api_key_inactive: 'This API key is not active. Use its successor, or ask support.',
    },
  },
  NotFound: {
    status: 404,
    title: 'Not Found',
    at: ['getRequest', 'getBatch', 'getDeliveries', 'resendDelivery'],
    description: 'Not an id of your organization.',
    // A path that no route takes is nobody's request and isn't counted.
    counted: 'sometimes',
    codes: {
      request_not_found: 'No request with this id belongs to your organization.',
      batch_not_found: 'No batch with this id belongs to your organization.',
      delivery_not_found: 'No delivery with this id belongs to this batch of your organization.',
      not_found: 'There is nothing at this path. The API lives under /api/v1.',
    },
  },
  MethodNotAllowed: {
    status: 405,
    title: 'Method Not Allowed',
    at: 'all',
    description: 'Any other method at this path.',
    headers: ['Allow'],
    codes: { method_not_allowed: 'Use {allow} here.' },
    example: { allow: 'GET, HEAD' },
  },
  RequestTimeout: {
    status: 408,
    title: 'Request Timeout',
    at: 'all',
    description: 'The request was not there after 10 seconds.',
    codes: { request_timeout: 'The request did not arrive in time.' },
  },
  IdempotencyInProgress: {
    status: 409,
    title: 'Conflict',
    at: ['submitSingle', 'submitBulk'],
    description: 'The first request with this Idempotency-Key is still running: repeat this one.',
    headers: ['Retry-After'],
    counted: 'always',
    codes: { idempotency_in_progress: 'The first request with this Idempotency-Key is still running.' },
  },
  NotResendable: {
    status: 409,
    title: 'Conflict',
    at: ['resendDelivery'],
    description: 'This delivery cannot be sent again now.',
    counted: 'always',
    codes: {
      delivery_pending: 'This delivery is already on its way, or its result is not there yet.',
      webhooks_suspended:
        'Webhooks of your organization are, or were then, suspended. Poll for results, or ask support.',
    },
  },
  BodyTooLarge: {
    status: 413,
    title: 'Content Too Large',
    at: ['submitSingle', 'submitBulk'],
    description: 'The body is larger than 64 KiB.',
    counted: 'always',
    codes: { body_too_large: 'The body may have 64 KiB at most.' },
  },
  UnsupportedMediaType: {
    status: 415,
    title: 'Unsupported Media Type',
    at: ['submitSingle', 'submitBulk'],
    description: 'The body is not JSON.',
    counted: 'always',
    codes: { unsupported_media_type: 'Send the body as application/json, without a Content-Encoding.' },
  },
  RateLimited: {
    status: 429,
    title: 'Too Many Requests',
    at: 'keyed',
    description:
      'Too many requests of this key, too many of this organization at once, or too many without a valid key from one address. Not counted.',
    headers: ['Retry-After'],
    // Without a valid key there is no quota.
    counted: 'sometimes',
    codes: {
      rate_limited: '{who} may send {quota} requests in {window} s. Try again in {wait} s.',
      too_many_at_once: 'Too many of your requests are under way at once. Try again in {wait} s.',
    },
    example: { who: 'This key', quota: 100, window: 60, wait: 3 },
  },
  HeadersTooLarge: {
    status: 431,
    title: 'Request Header Fields Too Large',
    at: 'all',
    description: 'Path and headers are larger than 16 KiB.',
    codes: { headers_too_large: 'The path and the headers may have 16 KiB at most.' },
  },
  InternalError: {
    status: 500,
    title: 'Internal Server Error',
    at: 'unexpected',
    description: 'A fault of ours.',
    codes: { internal_error: 'Something went wrong on our side. Quote the X-Request-Id to support.' },
  },
  ServiceUnavailable: {
    status: 503,
    title: 'Service Unavailable',
    at: 'keyed',
    description:
      'The database is away, or the service has all it can carry: nothing was done, unless only an acknowledgement was lost. With the same Idempotency-Key a repeated submit does nothing twice.',
    headers: ['Retry-After'],
    counted: 'sometimes',
    codes: {
      // Nothing was done, but for an acknowledgement of the database that was lost: that is what the key settles.
      service_unavailable:
        'The service cannot reach its database right now. Try again shortly; repeat a submit with the same Idempotency-Key.',
      overloaded: 'The service has all it can carry right now, and nothing was done. Try again in {wait} s.',
    },
    example: { wait: 1 },
  },
} as const satisfies Readonly<Record<string, ProblemKind>>;

type Name = keyof typeof PROBLEMS;
export type ProblemCode = { [N in Name]: keyof (typeof PROBLEMS)[N]['codes'] }[Name];

/** A row of the table for each code. */
const KINDS = new Map(
  Object.values<ProblemKind>(PROBLEMS).flatMap((kind) =>
    Object.keys(kind.codes).map((code) => [code, kind] as const),
  ),
);

/** An answer that isn't a success. Thrown by handlers and extensions, written by `registerErrors`. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly status: number;
  readonly body: object;
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, body: object, headers: Readonly<Record<string, string>> = {}) {
    super(`HTTP ${status}`);
    this.status = status;
    this.body = body;
    this.headers = headers;
  }
}

/** The answer of one code: application/problem+json (RFC 9457). */
export function problem(
  code: ProblemCode,
  { values, headers }: { readonly values?: Values; readonly headers?: Readonly<Record<string, string>> } = {},
): ApiError {
  const kind = KINDS.get(code) ?? PROBLEMS.InternalError;
  return new ApiError(kind.status, problemBody(kind, code, values), headers);
}

/** The body of one code. */
export function problemBody(kind: ProblemKind, code: string, values: Values = {}) {
  const { status, title, codes, hasMembers } = kind;
  const detail = (codes[code] ?? '').replaceAll(/\{(\w+)\}/g, (_, name: string) => String(values[name]));
  return { type: 'about:blank', title, status, code, detail, ...(hasMembers ? values : {}) };
}

/** One entry of a 422 (api/README.md, Errors), worded as FastAPI and pydantic 2 word it. */
export interface Problem {
  readonly loc: readonly (string | number)[];
  readonly msg: string;
  readonly type: string;
}

/** 422: exactly `{detail: […]}`, every problem at once. */
export function invalid(detail: readonly Problem[]): ApiError {
  return new ApiError(422, { detail });
}
