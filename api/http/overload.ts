import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { Request } from '@hapi/hapi';
import ipaddr from 'ipaddr.js';
import { type ApiError, problem } from '../problems.ts';

// These functions limit the resources that a client can use without a valid key or with too many
// requests.

/**
 * Runs `work` when the response is sent or the client has disconnected. If that has already
 * happened, runs it at once. The response to a request of the console never closes, because it has
 * no connection, but it finishes. Most responses do both, so a second run must change nothing.
 */
export function whenOver({ raw: { res } }: Request, work: () => void): void {
  if (res.closed) {
    work();
    return;
  }
  res.once('finish', work);
  res.once('close', work);
}

/**
 * Returns a function that finds the client's address. Usually this is the peer of the connection.
 * If the peer is one of our proxies, it is the last address in `X-Forwarded-For` that is not one of
 * our proxies. Earlier addresses in this header are ignored, because the client can invent them.
 * @param trustedProxies CIDR ranges
 */
function createClientOf(
  trustedProxies: readonly string[],
): (request: Pick<IncomingMessage, 'socket' | 'headers'>) => string {
  const isOurs = createIsOurs(trustedProxies);
  return ({ socket, headers }) => {
    const peer = socket.remoteAddress ?? '';
    const hops = String(headers['x-forwarded-for'] ?? '').split(',');
    const path = [...hops.map((hop) => hop.trim()).filter((hop) => hop !== ''), peer];
    return path.findLast((address) => !isOurs(address)) ?? peer;
  };
}

/**
 * Returns a function that finds the client's address, to count its requests. An IPv6 address is
 * reduced to its /64 network, because one subscriber can send from a whole /64.
 * @param trustedProxies CIDR ranges
 */
export function createAddressOf(
  trustedProxies: readonly string[],
): (request: IncomingMessage) => string {
  const clientOf = createClientOf(trustedProxies);
  return (request) => networkOf(clientOf(request));
}

/**
 * Returns a function that finds the network of the client, for the log: the /24 of an IPv4 address,
 * or the /48 of an IPv6 address. A whole address would be personal data.
 * @param trustedProxies CIDR ranges
 */
export function createNetworkOf(trustedProxies: readonly string[]) {
  const clientOf = createClientOf(trustedProxies);
  return (request: Pick<IncomingMessage, 'socket' | 'headers'>): string => {
    const client = clientOf(request);
    if (!ipaddr.isValid(client)) return 'unknown';
    const address = ipaddr.process(client);
    const [kind, bits] =
      address.kind() === 'ipv4' ? [ipaddr.IPv4, 24] : [ipaddr.IPv6, 48];
    const network = kind.networkAddressFromCIDR(`${address}/${bits}`);
    return `${network}/${bits}`;
  };
}

/**
 * Returns a function that finds the address of a connection's client, for a limit on connections
 * per address. The function returns null if the connection comes from one of our proxies, because
 * many clients share a proxy.
 * @param trustedProxies CIDR ranges
 */
export function createPeerOf(
  trustedProxies: readonly string[],
): (socket: Socket) => string | null {
  const isOurs = createIsOurs(trustedProxies);
  return ({ remoteAddress = '' }) =>
    isOurs(remoteAddress) ? null : networkOf(remoteAddress);
}

function createIsOurs(trustedProxies: readonly string[]): (address: string) => boolean {
  const ranges = { ours: trustedProxies.map((range) => ipaddr.parseCIDR(range)) };
  return (address) =>
    ipaddr.isValid(address) &&
    ipaddr.subnetMatch(ipaddr.process(address), ranges, '') === 'ours';
}

function networkOf(address: string): string {
  if (!ipaddr.isValid(address)) return address;
  const parsed = ipaddr.process(address);
  return parsed.kind() === 'ipv6'
    ? parsed.toByteArray().slice(0, 8).join('.')
    : parsed.toString();
}

export type NetworkOf = ReturnType<typeof createNetworkOf>;

/**
 * Puts an entry at the end of a map. If the map is then too large, removes the first entry, which
 * was put longest ago.
 */
export function keepLast<T>(
  map: Map<string, T>,
  key: string,
  value: T,
  atMost: number,
): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > atMost) map.delete(map.keys().next().value ?? '');
}

// A key can't be guessed, because it has 178 random bits. Because of its check characters, we
// reject nearly every guess without a query. The flood guard also limits how many guesses an
// address can send.

/** Number of failed key checks that one address may have in a window. */
const MAX_FAILURES = 100;
/**
 * The maximum number of addresses to remember. Beyond it, the addresses whose last failure is
 * oldest are forgotten. Only an attacker with more addresses than this could benefit, and a limit
 * per address could not stop that attacker anyway.
 */
const MAX_ADDRESSES = 10_000;

/** Counts the failed key checks of each address in this process. */
export function createFloodGuard(windowMs: number, now: () => number = Date.now) {
  const failures = new Map<string, number[]>();
  const recent = (address: string) =>
    (failures.get(address) ?? []).filter((at) => at > now() - windowMs);
  /** Returns the 429 for an address that has reached the limit of failures, otherwise null. */
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
     * @returns the 429 if the address had already reached the limit before this failure, otherwise
     * null
     */
    countFailure(address: string): ApiError | null {
      const refused = refusal(address);
      if (refused) return refused;
      keepLast(failures, address, [...recent(address), now()], MAX_ADDRESSES);
      return null;
    },
  };
}

// A client without a valid key could flood the log with its requests, so only a sample of them is
// logged.

const EVERY_MS = 10_000;

export type Sample = ReturnType<typeof createSample>;

/**
 * Creates a sampler that allows one log line per HTTP status in 10 seconds.
 * @returns a function to call before a line is written. It returns null if the line must not be
 * logged. Otherwise it returns how many lines were suppressed since the last one that was logged
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
