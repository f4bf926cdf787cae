import type { DnsRefusal } from '../../db/words.ts';
import { type MemoryLimits, type Names, remember } from '../http/names.ts';
import { createAddressPolicy } from '../webhooks/ip-policy.ts';
import { holdsDomain, isDisposable, readList, registrableDomain } from './domains.ts';

/** What is needed of name servers. */
export type MailResolver = Pick<Names, 'resolveMx' | 'resolve4' | 'resolve6'>;

/**
 * Whether a domain takes mail. `transient`: its name servers, or ours, did not answer, or ours
 * cannot be believed (`dns_untrusted`). Nothing is known then, and it is not evidence against an
 * address.
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
 * Name servers cannot be believed now. `afterMs`: when to ask again, in milliseconds. Null if that
 * is not known.
 */
export interface Distrust {
  readonly afterMs: number | null;
}

/** Returns null if our name servers can be believed. Never rejects. */
export type DnsControl = () => Promise<Distrust | null>;

const DEFINITE_MS = 5 * 60_000;
const MEMORY: MemoryLimits = { entries: 2000, bytes: 4_000_000 };

/**
 * A look-up of mail routes that remembers definite answers for five minutes: a bulk of one
 * hospital's staff is one question. That a domain takes no mail is believed only if the name
 * servers tell the truth about domains that do.
 * @param now milliseconds
 */
export function createMailRoutes(
  resolver: MailResolver,
  control: DnsControl,
  now: () => number,
): (domain: string) => Promise<MailRoute> {
  const ask = async (domain: string) => {
    const value = await findTrustedRoute(resolver, control, domain);
    // Forgotten at once if nothing is known, so that the retry asks again.
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
  return distrust
    ? { kind: 'transient', reason: 'dns_untrusted', afterMs: distrust.afterMs }
    : route;
}

const PARKERS = readList('parkers');
const { allows: isPublicAddress } = createAddressPolicy({ openCidrs: [] });
/**
 * Of a domain that names many, the first must do: name servers that are silent about each would
 * hold a check up.
 */
const EXCHANGERS_AT_MOST = 3;

/**
 * RFC 5321 section 5.1 and RFC 7505 (null MX), but stricter: the domain's own address does not do
 * in place of an MX, because every website has one, and an exchanger must be a name that the
 * internet knows, with an address that it reaches. Never rejects.
 */
export async function findRoute(resolver: MailResolver, domain: string): Promise<MailRoute> {
  const mx = await ask(() => resolver.resolveMx(domain));
  if ('kind' in mx) return mx;
  if (mx.length === 0) return { kind: 'refuses', reason: 'no_mx' };
  const exchangers = mx
    .toSorted((a, b) => a.priority - b.priority)
    .map(({ exchange }) => exchange.toLowerCase())
    .filter((exchanger) => exchanger !== '');
  if (exchangers.length === 0) return { kind: 'refuses', reason: 'null_mx' };
  if (exchangers.some((one) => holdsDomain(PARKERS, one)))
    return { kind: 'refuses', reason: 'parked' };
  if (exchangers.some(isDisposable)) return { kind: 'refuses', reason: 'disposable' };

  const named = exchangers.filter((exchanger) => registrableDomain(exchanger) !== null);
  let unsure: MailRoute | null = null;
  for (const exchanger of named.slice(0, EXCHANGERS_AT_MOST)) {
    const { resolve4, resolve6 } = resolver;
    for (const found of await Promise.all(
      [resolve4, resolve6].map((of) => ask(() => of(exchanger))),
    )) {
      if (!('kind' in found)) {
        if (found.some(isPublicAddress)) return { kind: 'accepts' };
      } else if (found.kind === 'transient') unsure ??= found;
    }
  }
  return unsure ?? { kind: 'refuses', reason: 'bad_mx' };
}

/** Records, or what it means that there are none to be had. */
async function ask<T>(resolve: () => Promise<readonly T[]>): Promise<readonly T[] | MailRoute> {
  try {
    return await resolve();
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : null;
    if (code === 'ENODATA') return [];
    if (code === 'ENOTFOUND') return { kind: 'refuses', reason: 'nxdomain' };
    const isLate = code === 'ETIMEOUT' || code === 'ECANCELLED';
    return { kind: 'transient', reason: isLate ? 'timeout' : 'dns_failure', afterMs: null };
  }
}
