import type { Request, ResponseObject } from '@hapi/hapi';
import type { Changes } from '../../db/changes.ts';
import { readInTurn } from './overload.ts';

// `Prefer: wait=N` (RFC 7240, section 4.3): the client would rather wait than poll.

/** Proxies cut connections that are silent for a minute. */
const MAX_WAIT_S = 55;

/**
 * Seconds the client is willing to wait, at most 55; 0 if it asks for none, or too many wait already. A preference is
 * never an error.
 */
export function preferredWait(request: Request): number {
  const header: unknown = request.headers.prefer;
  if (typeof header !== 'string') return 0;
  const seconds = /(?:^|[,;])\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:$|[,;])/i.exec(header)?.[1];
  if (seconds === undefined) return 0;
  try {
    const { waits } = request.server.app.lanes;
    request.raw.res.once('close', waits.enter(request.auth.credentials.organizationId).leave);
  } catch {
    return 0;
  }
  return Math.min(MAX_WAIT_S, Number(seconds));
}

/** Says that the wait was honored, and for how long it could have been. */
export function applied(response: ResponseObject, seconds: number): ResponseObject {
  return seconds > 0 ? response.header('preference-applied', `wait=${seconds}`).vary('prefer') : response;
}

/**
 * Reads until the state is what the client waits for, the time is over, or the client is gone. Every read is caused by
 * a change, of the batch or of the right to see it, never by a clock.
 * @param look reads the state; called at least once
 * @param done whether this state is worth answering with
 */
export async function holdUntil<T>(
  request: Request,
  changes: Changes,
  batchId: string,
  seconds: number,
  look: () => Promise<T>,
  done: (state: T) => boolean,
): Promise<T> {
  const { keyId, organizationId } = request.auth.credentials;
  const watch = changes.watch(batchId, keyId, organizationId);
  const timer = setTimeout(watch.stop, seconds * 1000);
  request.events.once('disconnect', watch.stop);
  try {
    for (;;) {
      const next = watch.next();
      const state = await readInTurn(request, look);
      if (done(state) || !(await next)) return state;
    }
  } finally {
    clearTimeout(timer);
    watch.stop();
  }
}
