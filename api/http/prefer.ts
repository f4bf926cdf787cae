import type { Request, ResponseObject } from '@hapi/hapi';
import type { Changes } from '../../db/changes.ts';
import { whenOver } from './overload.ts';
import { readInTurn } from './turn-queue.ts';

// `Prefer: wait=N` (RFC 7240, section 4.3): the client would rather wait than poll. `until=change`
// is our own preference (DECISIONS.md, Polls).

/** Longest wait in seconds. Proxies cut connections that are silent for a minute. */
export const MAX_WAIT_S = 55;

/**
 * Returns the wait that the client prefers, at most 55 s. Returns null if it prefers no wait, or if
 * too many requests already wait. A preference is never an error.
 */
export function preferredWait(request: Request) {
  const header: unknown = request.headers.prefer;
  if (typeof header !== 'string') return null;
  const seconds = /(?:^|[,;])\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:$|[,;])/i.exec(header)?.[1];
  if (Number(seconds ?? 0) === 0) return null;
  try {
    const { waits } = request.server.app.queues;
    const place = waits.enter(request.auth.credentials.organizationId);
    whenOver(request, () => place.leave());
  } catch {
    return null;
  }
  const isAnyChange = /(?:^|[,;])\s*until\s*=\s*"?change"?\s*(?:$|[,;])/i.test(header);
  const until: 'change' | 'end' = isAnyChange ? 'change' : 'end';
  return { seconds: Math.min(MAX_WAIT_S, Number(seconds)), until };
}

/** Adds `Preference-Applied`, which says how long the wait could have been, and for what event. */
export function applied(
  response: ResponseObject,
  wait: ReturnType<typeof preferredWait>,
): ResponseObject {
  if (!wait) return response;
  const until = wait.until === 'change' ? ', until=change' : '';
  return response.header('preference-applied', `wait=${wait.seconds}${until}`).vary('prefer');
}

/**
 * Waits until `look` returns true, the time is over, or the client is gone. Only a change triggers
 * another look, either of the watched object or of the right to see it; never a clock.
 * @param watched an id, or `endOf` an id
 * @param look returns true if there is nothing more to wait for; called at least once
 */
export async function holdUntil(
  request: Request,
  changes: Changes,
  watched: string,
  seconds: number,
  look: () => Promise<boolean>,
): Promise<void> {
  const { keyId, organizationId } = request.auth.credentials;
  const watch = changes.watch(watched, keyId, organizationId);
  const timer = setTimeout(watch.stop, seconds * 1000);
  const begun = performance.now();
  whenOver(request, watch.stop);
  try {
    for (;;) {
      const next = watch.next();
      if ((await readInTurn(request, look)) || !(await next)) return;
    }
  } finally {
    clearTimeout(timer);
    watch.stop();
    request.app.waitedMs = performance.now() - begun;
  }
}
