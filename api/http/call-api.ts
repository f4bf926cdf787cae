import type { Request } from '@hapi/hapi';

// The console and the MCP server call the API in their own process, with the key of their caller. So
// all rules of the API apply to them.

/** A successful response of the API. */
interface ApiResponse<T> {
  /** The owner of the key. */
  readonly caller: Request['auth']['credentials'];
  readonly headers: Readonly<Record<string, unknown>>;
  readonly body: T;
  /** Milliseconds for which the call was held because of its `Prefer: wait` header. */
  readonly waitedMs: number;
}

interface ApiCall {
  readonly method?: 'GET' | 'POST';
  /** A key in the headers replaces the key of the console's session. */
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: object | undefined;
  /** True if the call has counted toward the rate limit, and must not count again. */
  readonly isCounted?: boolean;
}

/** An error of the API, as its callers read it. */
interface ErrorResponse {
  /** The stable code. A 422 has none. */
  readonly code?: string;
  /** The text for people, or the problems of a 422. */
  readonly detail: string | readonly InvalidField[];
}

interface InvalidField {
  readonly loc: readonly (string | number)[];
  readonly msg: string;
}

/** Thrown if the API responds with an error. */
export class CallFailed extends Error {
  readonly status: number;
  /**
   * The stable code, empty for a 422. Its name is not `code`, because only errors of the driver have
   * that (`toDatabaseError`).
   */
  readonly problemCode: string;
  readonly #detail: ErrorResponse['detail'];

  constructor(status: number, { code = '', detail }: ErrorResponse) {
    super(`HTTP ${status}`);
    this.status = status;
    this.problemCode = code;
    this.#detail = detail;
  }

  /** Returns the text of the error for people. */
  text(): string {
    if (typeof this.#detail === 'string') return this.#detail;
    return this.#detail.map(({ loc, msg }) => `${loc.at(-1)}: ${msg}.`).join(' ');
  }

  /** Returns the problem of each field of a 422, to show it next to the field. */
  fields(): Record<string, string> {
    if (typeof this.#detail === 'string') return {};
    return Object.fromEntries(
      this.#detail.map(({ loc, msg }) => [loc.at(-1), `${msg}.`]),
    );
  }
}

/**
 * Calls the API of this process, as if the program of the caller called it. The call counts toward
 * the rate limit of the key, unless it is `isCounted` already.
 * @throws {CallFailed} if the response is an error
 */
export async function callApi<T>(
  request: Request,
  path: string,
  { method = 'GET', headers = {}, body, isCounted = false }: ApiCall = {},
): Promise<ApiResponse<T>> {
  const all: Record<string, string> = { ...headers };
  if (body) all['content-type'] = 'application/json';
  const forwarded: unknown = request.headers['x-forwarded-for'];
  // The API limits wrong keys by the address of the caller.
  if (typeof forwarded === 'string') all['x-forwarded-for'] = forwarded;
  // All log lines of one request of a customer have the same id.
  if (request.app.requestId) {
    all['x-request-id'] = request.app.requestId;
  }
  const keyHash = headers.authorization === undefined ? request.app.keyHash : undefined;
  const {
    statusCode: status,
    payload,
    headers: sent,
    request: { app, auth },
  } = await request.server.inject({
    method,
    url: path,
    headers: all,
    payload: body ? JSON.stringify(body) : '',
    remoteAddress: request.info.remoteAddress,
    app: { keyHash, isCounted } as Request['app'],
  });
  const parsed = JSON.parse(payload);
  if (status >= 400) throw new CallFailed(status, parsed);
  const { waitedMs = 0 } = app;
  return { caller: auth.credentials, headers: sent, body: parsed, waitedMs };
}
