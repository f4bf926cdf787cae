import { bodyOf, type Field, FieldError } from './fields.ts';
import { type HttpAnswer, retryAfterMs } from './http.ts';
import type { Step } from './port.ts';

// What means the same at every vendor.

/** No whole answer came back. */
export const NO_ANSWER = { kind: 'retry', why: 'network', afterMs: null } as const satisfies Step;

/** @param field where the answer is not as documented, such as `emails[0].type`, `status` or `body` */
export function protocol(field: string): Step {
  return { kind: 'fatal', why: 'protocol', field };
}

/**
 * What `read` makes of a JSON body. An answer that cannot be read is not asked for again: the next one would have
 * the same form, and may cost again.
 */
export function stepOfBody({ text }: HttpAnswer, read: (body: Field) => Step): Step {
  try {
    return read(bodyOf(text));
  } catch (error) {
    if (error instanceof FieldError) return protocol(error.field);
    throw error;
  }
}

/**
 * What a status means where the vendor gives it no meaning of its own. The bodies of these are never read: what a
 * failing server or a gateway before it writes is not the vendor's word.
 */
export function stepOfStatus({ status, headers }: HttpAnswer): Step {
  switch (status) {
    case 401:
      return { kind: 'fatal', why: 'auth' };
    case 402:
      return { kind: 'fatal', why: 'credits' };
    case 403:
      return { kind: 'fatal', why: 'plan' };
    case 429:
      return { kind: 'retry', why: 'rate_limit', afterMs: retryAfterMs(headers) };
    case 451:
      return { kind: 'blocked' };
  }
  // 408 and 425 are a server's or gateway's way to say "not this time", whatever their class says.
  if (status >= 500 || status === 408 || status === 425) {
    return { kind: 'retry', why: 'upstream', afterMs: retryAfterMs(headers) };
  }
  return protocol('status');
}

/**
 * A 404 of a vendor that means nobody by it. Its own 404 is JSON: a web page means a wrong base URL, which must not
 * read as "nobody".
 */
export function stepOfNotFound({ headers }: HttpAnswer, miss: Extract<Step, { kind: 'miss' }>): Step {
  return headers.get('content-type')?.startsWith('text/html') ? protocol('body') : miss;
}
