import type { Request, ResponseObject } from '@hapi/hapi';
import type { Changes } from '../../db/connection/changes.ts';
import { whenOver } from './overload.ts';
import { readInTurn } from './turn-queue.ts';

// With `Prefer: wait=N` (RFC 7240, section 4.3), a client asks the service to hold its request for
// up to N seconds until there is something new. The standard does not have `until=change`. It is
// our addition (api/docs/lifecycle.md, Waiting).

/**
 * Longest time in seconds that a request is held. Many proxies close connections that are silent
 * for a minute.
 */
export const MAX_WAIT_S = 55;

/**
 * Returns the time for which to hold the request, at most 55 seconds, and the event that ends the
 * wait earlier. Returns null if the client did not ask for a wait, or if too many requests already
 * wait. An invalid preference is ignored.
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
  const until: 'change' | 'end' = prefers(request, 'until', 'change') ? 'change' : 'end';
  return { seconds: Math.min(MAX_WAIT_S, Number(seconds)), until };
}

/**
 * Returns true if the client asks for the results in the response to a submit
 * (`return=representation`, RFC 7240, section 4.2).
 */
export function prefersResults(request: Request): boolean {
  return prefers(request, 'return', 'representation');
}

/** Returns true if the client sent a preference with this value, with or without quotes. */
function prefers(request: Request, name: string, value: string): boolean {
  return preferencesOf(request).some((one) => one === `${name}=${value}`);
}

/** Returns the preferences of a request as `name=value`, in lowercase, without spaces and quotes. */
function preferencesOf({ headers }: Request): string[] {
  const header: unknown = headers.prefer;
  if (typeof header !== 'string') return [];
  const preferences = header.toLowerCase().replaceAll(/[\s"]/g, '').split(/[,;]/);
  return preferences.filter((one) => one !== '');
}

/** The values of each preference that the service knows. */
const KNOWN: ReadonlyMap<string, RegExp> = new Map([
  ['wait', /^\d{1,9}$/],
  ['until', /^(?:change|end)$/],
  ['return', /^(?:representation|minimal)$/],
  ['handling', /^(?:strict|lenient)$/],
]);

/**
 * Returns true if the client asks for strict handling (`handling=strict`, RFC 7240, section 4.4).
 * The unknown fields and preferences of other clients are ignored.
 */
export function isStrict(request: Request): boolean {
  return prefers(request, 'handling', 'strict');
}

/** Returns true if a preference has an unknown name or an invalid value. */
export function hasUnknownPreference(request: Request): boolean {
  return preferencesOf(request).some((one) => {
    const [name = '', ...value] = one.split('=');
    return !KNOWN.get(name)?.test(value.join('='));
  });
}

/**
 * Adds the header `Preference-Applied` if a preference was honored. It shows the maximum wait, the
 * event that would have ended it, and whether the response has the results.
 */
export function applied(
  response: ResponseObject,
  wait: ReturnType<typeof preferredWait>,
  hasResults = false,
): ResponseObject {
  const honored: string[] = [];
  if (wait) honored.push(`wait=${wait.seconds}`);
  if (wait?.until === 'change') honored.push('until=change');
  if (hasResults) honored.push('return=representation');
  if (honored.length === 0) return response;
  return response.header('preference-applied', honored.join(', ')).vary('prefer');
}

/**
 * Waits until `look` returns true, the time is over, or the client has disconnected. Calls `look`
 * again only when the watched request or batch may have changed, or when the API key may have
 * become invalid. It does not query the database at intervals.
 * @param watched the id of a request or batch, or `endOf` that id to wait only for the final result
 * @param look returns true if the wait is over. It is called at least once
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
