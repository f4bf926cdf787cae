import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import { addAbortSignal } from 'node:stream';
import type { AttemptReason } from '../../db/words.ts';
import { parseRetryAfter } from '../http/client.ts';
import { AttemptFailure, CountedTooLate, type FailureReason, step } from './attempt.ts';
import {
  type Connection,
  type ConnectionSettings,
  createConnect,
  type Destination,
  ignore,
} from './connection.ts';

/**
 * The result of one attempt.
 * - `responded`: a status arrived. The status decides whether the delivery was accepted, even if the
 *   body is incomplete.
 * - `failed`: there was no response. With `blocked_address` and `blocked_by_operator`, the target
 *   must not be contacted again.
 */
export type AttemptResult =
  | {
      readonly kind: 'responded';
      readonly status: number;
      /** The IP address that the attempt was connected to. */
      readonly address: string;
      /** The `Retry-After` header in milliseconds from now; null if it is missing or unreadable. */
      readonly retryAfterMs: number | null;
      /** At most the first 1024 bytes of the body as sent, so possibly compressed. */
      readonly excerpt: Buffer;
      /**
       * `body_timeout` if the body was incomplete at the time limit, `body_broken` if the
       * connection ended during the body. Otherwise null.
       */
      readonly body: 'body_timeout' | 'body_broken' | null;
    }
  | { readonly kind: 'failed'; readonly reason: FailureReason };

/**
 * Returns the reason that the delivery log shows in addition to the status. Null for a complete 2xx
 * response.
 */
export function reasonOf(result: AttemptResult): AttemptReason | null {
  if (result.kind === 'failed') return result.reason;
  const { status, body } = result;
  if (status >= 200 && status <= 299) return body;
  if (status >= 300 && status <= 399) return 'redirect';
  return 'http_status';
}

export interface PostSettings extends ConnectionSettings {
  readonly userAgent: string;
  /**
   * The time limit of the whole attempt in milliseconds: connection, request, and a slow response.
   */
  readonly totalMs?: number;
  /** The time limit of name lookup, TCP, and TLS together, in milliseconds. */
  readonly connectMs?: number;
}

export interface Message extends Pick<Destination, 'blocked' | 'admit'> {
  readonly url: string;
  /**
   * Headers in addition to `user-agent` and those that HTTP needs. `host` and `accept-encoding`
   * cannot be changed.
   */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

const EXCERPT_BYTES = 1024;

/**
 * Creates the function that sends one HTTPS POST to a URL chosen by a customer (DECISIONS.md,
 * Webhooks, target). It follows no redirects and reuses no connections, because either could reach
 * an unchecked host. A receiver's behavior always results in an `AttemptResult`, never in an error.
 * @throws {CountedTooLate} from the created function
 */
export function createPost(
  settings: PostSettings,
): (message: Message) => Promise<AttemptResult> {
  const { userAgent, totalMs = 15_000, connectMs = 5_000 } = settings;
  const connect = createConnect(settings);

  return async ({ url, headers, body, blocked, admit }) => {
    const target = URL.parse(url);
    if (
      target?.protocol !== 'https:' ||
      target.username !== '' ||
      target.password !== ''
    ) {
      return { kind: 'failed', reason: 'blocked_address' };
    }
    const attempt = new AbortController();
    const { signal } = attempt;
    const expire = (reason: FailureReason) => attempt.abort(new AttemptFailure(reason));
    const ending = setTimeout(expire, totalMs, 'timeout_total');
    const connecting = setTimeout(expire, connectMs, 'timeout_connect');
    try {
      const connection = await connect({ target, blocked, admit }, connectMs, signal);
      clearTimeout(connecting);
      const allHeaders = { ...headers, 'user-agent': userAgent };
      return await exchange(connection, target, allHeaders, body, signal);
    } catch (error) {
      if (error instanceof CountedTooLate) throw error;
      const failure = signal.aborted ? signal.reason : error;
      if (failure instanceof AttemptFailure) {
        return { kind: 'failed', reason: failure.reason };
      }
      throw error;
    } finally {
      clearTimeout(ending);
      clearTimeout(connecting);
      // Removes the listeners from the signal.
      attempt.abort();
    }
  };
}

async function exchange(
  { socket, address }: Connection,
  target: URL,
  headers: Readonly<Record<string, string>>,
  body: string,
  signal: AbortSignal,
): Promise<AttemptResult> {
  const outgoing = request(target, {
    method: 'POST',
    headers: {
      ...headers,
      // Without this line, Node would send `name:80` for a URL without a port, because we use no
      // agent.
      host: target.host,
      'accept-encoding': 'identity',
    },
    createConnection: () => socket,
  });
  outgoing.on('error', ignore);
  outgoing.end(body);
  const arrived = await step(once(outgoing, 'response', { signal }), 'network');
  const [response] = arrived as [IncomingMessage];
  const { statusCode: status = 0 } = response;
  // Node's parser accepts any three digits, but these aren't statuses (RFC 9110, 15).
  if (status < 100 || status > 599) {
    throw new AttemptFailure('not_http');
  }
  const retryAfterMs = parseRetryAfter(response.headers['retry-after']);
  const read = await readExcerpt(response, signal);
  return { kind: 'responded', status, address, retryAfterMs, ...read };
}

async function readExcerpt(response: IncomingMessage, signal: AbortSignal) {
  const chunks: Buffer[] = [];
  let size = 0;
  let body: Extract<AttemptResult, { kind: 'responded' }>['body'] = null;
  try {
    for await (const chunk of addAbortSignal(signal, response).on('error', ignore)) {
      chunks.push(chunk);
      size += chunk.length;
      if (size >= EXCERPT_BYTES) break;
    }
  } catch {
    // The status has already arrived, and only the status decides. The body is only for the
    // delivery log.
    body = signal.aborted ? 'body_timeout' : 'body_broken';
  }
  return { excerpt: Buffer.concat(chunks, Math.min(size, EXCERPT_BYTES)), body };
}
