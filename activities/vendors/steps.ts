import { type HttpAnswer, type NoAnswer, retryAfterMs } from '../http/client.ts';
import { bodyOf, type Field, FieldError } from '../http/fields.ts';
import type { Step } from './vendor.ts';

// What means the same at every vendor.

type Retry = Extract<Step, { kind: 'retry' }>;

/** The vendor lost the question or stopped working on it, which says nothing of the person. */
export const GIVEN_UP = { kind: 'retry', why: 'upstream', afterMs: null } as const satisfies Step;

/** No whole answer came back. */
export function noAnswer(why: NoAnswer): Retry {
  return { kind: 'retry', why, afterMs: null };
}

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
export function stepOfStatus(answer: HttpAnswer): Step {
  switch (answer.status) {
    case 401:
      return { kind: 'fatal', why: 'auth' };
    case 402:
      return { kind: 'fatal', why: 'credits' };
    case 403:
      return { kind: 'fatal', why: 'plan' };
    case 451:
      return { kind: 'blocked' };
  }
  return retryOfStatus(answer) ?? protocol('status');
}

/** Null where the status does not say that the same question may be answered another time. */
export function retryOfStatus({ status, headers }: HttpAnswer): Retry | null {
  const afterMs = retryAfterMs(headers);
  switch (status) {
    case 429:
      return { kind: 'retry', why: 'rate_limit', afterMs };
    // Not this time, whatever their class says.
    case 408:
    case 425:
      return { kind: 'retry', why: 'upstream', afterMs };
    // A gateway's word that it lost an answer, not that the vendor behind it has done nothing.
    case 502:
    case 504:
      return { kind: 'retry', why: 'unanswered', afterMs };
  }
  return status >= 500 ? { kind: 'retry', why: 'upstream', afterMs } : null;
}

/**
 * A 404 of a vendor that means something by it: nobody, or a job it does not know. Its own 404 is JSON: a web page
 * means a wrong base URL, which must not read as either.
 */
export function stepOfNotFound({ headers }: HttpAnswer, meaning: Step): Step {
  return headers.get('content-type')?.startsWith('text/html') ? protocol('body') : meaning;
}
