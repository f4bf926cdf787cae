import type { DnsRefusal } from '../../db/words.ts';
import { type MemoryLimits, type Names, remember } from '../http/names.ts';
import { createAddressPolicy } from '../webhooks/ip-policy.ts';
import { holdsDomain, isDisposable, readList, registrableDomain } from './domains.ts';

/** The DNS queries that the checks of a mail domain need. */
export type MailResolver = Pick<Names, 'resolveMx' | 'resolve4' | 'resolve6'>;

/**
 * The result of the search for a domain's mail servers. `transient` means that the domain's name
 * servers or ours did not respond, or that ours cannot be trusted (`dns_untrusted`). The result is
 * then unknown, and is not evidence against an address.
 */
export type MailRoute =
  | { readonly kind: 'accepts' }
  | {
      readonly kind: 'refuses';
      readonly reason: DnsRefusal;
    }
  | {
      readonly kind: 'transient';
      readonly reason: 'timeout' | 'dns_failure' | 'dns_untrusted';
      readonly afterMs: number | null;
    };

/**
 * The state of name servers that cannot be trusted now. `afterMs` is the time until the next
 * control in milliseconds, or null if unknown.
 */
export interface Distrust {
  readonly afterMs: number | null;
}

/**
 * A function that returns null if our name servers can be trusted now. Its promise never rejects.
 */
export type DnsControl = () => Promise<Distrust | null>;

const DEFINITE_MS = 5 * 60_000;
const MEMORY: MemoryLimits = { entries: 2000, bytes: 4_000_000 };

/**
 * Creates a lookup of mail routes that caches definite results for five minutes, so that a batch of
 * one hospital's staff causes one lookup. The result that a domain takes no mail is trusted only if
 * the name servers respond correctly for domains that are known to take mail.
 * @param now returns the time in milliseconds
 */
export function createMailRoutes(
  resolver: MailResolver,
  control: DnsControl,
  now: () => number,
): (domain: string) => Promise<MailRoute> {
  const ask = async (domain: string) => {
    const value = await findTrustedRoute(resolver, control, domain);
    // An unknown result is not cached, so that a retry repeats the lookup.
    return { value, forMs: value.kind === 'transient' ? 0 : DEFINITE_MS };
  };
  return remember(ask, MEMORY, now);
}

async function findTrustedRoute(
  resolver: MailResolver,
  control: DnsControl,
  domain: string,
): Promise<MailRoute> {
  const route = await findRoute(resolver, domain);
  if (route.kind !== 'refuses') return route;
  const distrust = await control();
  if (distrust === null) return route;
  return { kind: 'transient', reason: 'dns_untrusted', afterMs: distrust.afterMs };
}

const PARKERS = readList('parkers');
const { allows: isPublicAddress } = createAddressPolicy({ openCidrs: [] });
/**
 * The maximum number of mail exchangers whose addresses are looked up. Each exchanger whose name
 * servers do not respond delays the check by several seconds.
 */
const MAX_EXCHANGERS = 3;

/**
 * Finds the mail servers of a domain by RFC 5321 section 5.1 and RFC 7505 (null MX), with stricter
 * rules. Unlike in the RFC, the domain's own address does not replace a missing MX record, because
 * every website has an address. An exchanger must have a registrable name and a public address.
 * Never rejects.
 */
export async function findRoute(
  resolver: MailResolver,
  domain: string,
): Promise<MailRoute> {
  const mx = await ask(() => resolver.resolveMx(domain));
  if ('kind' in mx) return mx;
  if (mx.length === 0) return { kind: 'refuses', reason: 'no_mx' };
  const exchangers = mx
    .toSorted((a, b) => a.priority - b.priority)
    .map(({ exchange }) => exchange.toLowerCase())
    .filter((exchanger) => exchanger !== '');
  if (exchangers.length === 0) {
    return { kind: 'refuses', reason: 'null_mx' };
  }
  if (exchangers.some((one) => holdsDomain(PARKERS, one))) {
    return { kind: 'refuses', reason: 'parked' };
  }
  if (exchangers.some(isDisposable)) {
    return { kind: 'refuses', reason: 'disposable' };
  }

  const named = exchangers.filter((exchanger) => registrableDomain(exchanger) !== null);
  let unsure: MailRoute | null = null;
  for (const exchanger of named.slice(0, MAX_EXCHANGERS)) {
    const route = await routeTo(resolver, exchanger);
    if (route.kind === 'accepts') return route;
    if (route.kind === 'transient') unsure ??= route;
  }
  return unsure ?? { kind: 'refuses', reason: 'bad_mx' };
}

async function routeTo(resolver: MailResolver, exchanger: string): Promise<MailRoute> {
  const results = await Promise.all([
    ask(() => resolver.resolve4(exchanger)),
    ask(() => resolver.resolve6(exchanger)),
  ]);
  let unsure: MailRoute | null = null;
  for (const found of results) {
    if (!('kind' in found)) {
      if (found.some(isPublicAddress)) return { kind: 'accepts' };
    } else if (found.kind === 'transient') {
      unsure ??= found;
    }
  }
  return unsure ?? { kind: 'refuses', reason: 'bad_mx' };
}

/** Returns the records, or the mail route that follows from the DNS error. */
async function ask<T>(
  resolve: () => Promise<readonly T[]>,
): Promise<readonly T[] | MailRoute> {
  try {
    return await resolve();
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : null;
    if (code === 'ENODATA') return [];
    if (code === 'ENOTFOUND') {
      return { kind: 'refuses', reason: 'nxdomain' };
    }
    const isLate = code === 'ETIMEOUT' || code === 'ECANCELLED';
    const reason = isLate ? 'timeout' : 'dns_failure';
    return { kind: 'transient', reason, afterMs: null };
  }
}
