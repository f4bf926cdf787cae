import type { MxRecord } from 'node:dns';
import { remember } from '../http/names.ts';

/** What is needed of name servers; `Names` is one. */
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

const DEFINITE_MS = 5 * 60_000;
const DOMAINS_AT_MOST = 2000;

/**
 * A look-up of mail routes that remembers definite answers for five minutes: a bulk of one hospital's staff is one
 * question.
 * @param now milliseconds
 */
export function createMailRoutes(
  resolver: MailResolver,
  now: () => number,
): (domain: string) => Promise<MailRoute> {
  const ask = async (domain: string) => {
    const value = await findRoute(resolver, domain);
    // Forgotten at once if nothing is known, so that the retry asks again.
    return { value, forMs: value.kind === 'transient' ? 0 : DEFINITE_MS };
  };
  return remember(ask, DOMAINS_AT_MOST, now);
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
  return {
    kind: 'transient',
    reason: code === 'ETIMEOUT' || code === 'ECANCELLED' ? 'timeout' : 'dns_failure',
  };
}
