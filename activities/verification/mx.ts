import type { MxRecord } from 'node:dns';

/** What is needed of a resolver; `Resolver` of node:dns/promises is one. */
export interface MailResolver {
  resolveMx(domain: string): Promise<readonly MxRecord[]>;
  resolve4(domain: string): Promise<readonly string[]>;
  resolve6(domain: string): Promise<readonly string[]>;
}

/**
 * Whether a domain takes mail. `transient`: its name servers, or ours, did not answer; nothing is known, and an
 * address must not be thought bad for it.
 */
export type MailRoute =
  | { readonly kind: 'accepts' }
  | { readonly kind: 'refuses'; readonly reason: 'no_mx' | 'null_mx' | 'nxdomain' }
  | { readonly kind: 'transient'; readonly reason: 'timeout' | 'dns_failure' };

const CACHE_MS = 5 * 60_000;
const CACHE_DOMAINS = 2000;

/**
 * A look-up of mail routes that remembers definite answers for five minutes, and asks once for what many ask at
 * the same time: a bulk of one hospital's staff is one question.
 * @param now milliseconds
 */
export function createMailRoutes(
  resolver: MailResolver,
  now: () => number,
): (domain: string) => Promise<MailRoute> {
  const cache = new Map<string, { readonly route: Promise<MailRoute>; readonly until: number }>();

  return (domain) => {
    const known = cache.get(domain);
    if (known && known.until > now()) return known.route;
    const route = findRoute(resolver, domain);
    const entry = { route, until: now() + CACHE_MS };
    cache.delete(domain);
    cache.set(domain, entry);
    if (cache.size > CACHE_DOMAINS) dropOldest(cache);
    return route.then((found) => {
      // Forgotten at once, so that the retry asks again.
      if (found.kind === 'transient' && cache.get(domain) === entry) cache.delete(domain);
      return found;
    });
  };
}

function dropOldest(cache: Map<string, unknown>): void {
  const oldest = cache.keys().next();
  if (!oldest.done) cache.delete(oldest.value);
}

/** RFC 5321 section 5.1 (MX, else the domain's own address) and RFC 7505 (null MX). Never rejects. */
async function findRoute(resolver: MailResolver, domain: string): Promise<MailRoute> {
  const mx = await ask(() => resolver.resolveMx(domain));
  if (mx.kind === 'failure') return mx.route;
  if (mx.records.some(({ exchange }) => exchange !== '' && exchange !== '.')) return { kind: 'accepts' };
  if (mx.records.length > 0) return { kind: 'refuses', reason: 'null_mx' };

  for (const resolve of [() => resolver.resolve4(domain), () => resolver.resolve6(domain)]) {
    const addresses = await ask(resolve);
    if (addresses.kind === 'failure') return addresses.route;
    if (addresses.records.length > 0) return { kind: 'accepts' };
  }
  return { kind: 'refuses', reason: 'no_mx' };
}

type Records<T> =
  | { readonly kind: 'records'; readonly records: readonly T[] }
  | { readonly kind: 'failure'; readonly route: MailRoute };

async function ask<T>(resolve: () => Promise<readonly T[]>): Promise<Records<T>> {
  try {
    return { kind: 'records', records: await resolve() };
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : null;
    if (code === 'ENODATA') return { kind: 'records', records: [] };
    return { kind: 'failure', route: routeOfFailure(code) };
  }
}

function routeOfFailure(code: unknown): MailRoute {
  if (code === 'ENOTFOUND') return { kind: 'refuses', reason: 'nxdomain' };
  return { kind: 'transient', reason: code === 'ETIMEOUT' ? 'timeout' : 'dns_failure' };
}
