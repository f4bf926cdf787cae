import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { Request } from '@hapi/hapi';
import ipaddr from 'ipaddr.js';
import { type ApiError, problem } from '../problems.ts';

// Limits what a client without a valid key, or with too many requests, can cost the process.

/**
 * Runs `work` once the response is sent or the client is gone. Runs it now if that already happened
 * while something was awaited.
 */
export function whenOver({ raw: { res } }: Request, work: () => void): void {
  if (res.closed) work();
  else res.once('close', work);
}

/**
 * Returns a function that finds the client's address: the peer, or behind our proxies the last
 * address that isn't one of them. Anything before it in `X-Forwarded-For` is only the client's
 * claim. An IPv6 address is reduced to its /64 network, because one subscriber can send from a
 * whole /64.
 * @param trustedProxies CIDR ranges
 */
export function createAddressOf(
  trustedProxies: readonly string[],
): (request: IncomingMessage) => string {
  const isOurs = createIsOurs(trustedProxies);
  return ({ socket, headers }) => {
    const peer = socket.remoteAddress ?? '';
    const hops = String(headers['x-forwarded-for'] ?? '').split(',');
    const path = [...hops.map((hop) => hop.trim()).filter((hop) => hop !== ''), peer];
    return networkOf(path.findLast((address) => !isOurs(address)) ?? peer);
  };
}

/**
 * Returns a function that finds the address a connection counts for, or null for one of our
 * proxies, because many clients share it.
 * @param trustedProxies CIDR ranges
 */
export function createPeerOf(trustedProxies: readonly string[]): (socket: Socket) => string | null {
  const isOurs = createIsOurs(trustedProxies);
  return ({ remoteAddress = '' }) => (isOurs(remoteAddress) ? null : networkOf(remoteAddress));
}

function createIsOurs(trustedProxies: readonly string[]): (address: string) => boolean {
  const ranges = { ours: trustedProxies.map((range) => ipaddr.parseCIDR(range)) };
  return (address) =>
    ipaddr.isValid(address) && ipaddr.subnetMatch(ipaddr.process(address), ranges, '') === 'ours';
}

function networkOf(address: string): string {
  if (!ipaddr.isValid(address)) return address;
  const parsed = ipaddr.process(address);
  return parsed.kind() === 'ipv6' ? parsed.toByteArray().slice(0, 8).join('.') : parsed.toString();
}

/**
 * Puts an entry at the end of a map. If the map is too large, removes the entry that has not been
 * put for the longest time.
 */
export function keepLast<T>(map: Map<string, T>, key: string, value: T, atMost: number): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > atMost) map.delete(map.keys().next().value ?? '');
}

// Guessing keys is hopeless: a key has 178 random bits, and its check characters reject nearly
// every guess before a query. The flood guard makes trying expensive as well.

/** Failed key checks that one address may have in any window. */
const MAX_FAILURES = 100;
/**
 * Beyond this many addresses, the oldest ones are dropped. An attacker with more addresses gains
 * nothing by it.
 */
const MAX_ADDRESSES = 10_000;

/** Counts failed key checks by address, in this process. */
export function createFloodGuard(windowMs: number, now: () => number = Date.now) {
  const failures = new Map<string, number[]>();
  const recent = (address: string) =>
    (failures.get(address) ?? []).filter((at) => at > now() - windowMs);
  /**
   * Returns the 429 to send instead of any other response once the address has used up its share;
   * otherwise null.
   */
  const refusal = (address: string) => {
    const times = recent(address);
    const [oldest] = times;
    if (times.length < MAX_FAILURES || oldest === undefined) return null;
    return problem('rate_limited', {
      who: 'An address without a valid API key',
      quota: MAX_FAILURES,
      window: Math.ceil(windowMs / 1000),
      wait: Math.max(1, Math.ceil((oldest + windowMs - now()) / 1000)),
    });
  };
  return {
    refusal,
    /**
     * Counts one failure.
     * @returns the same as `refusal`, for the failures before this one
     */
    countFailure(address: string): ApiError | null {
      const refused = refusal(address);
      if (refused) return refused;
      keepLast(failures, address, [...recent(address), now()], MAX_ADDRESSES);
      return null;
    },
  };
}

// A client without a valid key could cause a log line with every request, so these lines are
// sampled.

const EVERY_MS = 10_000;

export type Sample = ReturnType<typeof createSample>;

/**
 * Creates a sampler that passes one log line per status in any 10 s.
 * @returns a function to call before a line is written. It returns how many lines were suppressed
 * since the last one, or null if this line is suppressed too
 */
export function createSample(now: () => number = Date.now) {
  const lines = new Map<number, { readonly at: number; suppressed: number }>();
  return (status: number): number | null => {
    const line = lines.get(status);
    if (line && now() < line.at + EVERY_MS) {
      line.suppressed += 1;
      return null;
    }
    lines.set(status, { at: now(), suppressed: 0 });
    return line?.suppressed ?? 0;
  };
}
