import ipaddr from 'ipaddr.js';
import { type ApiError, problem } from '../problems.ts';

// Guessing keys is hopeless (178 random bits, and check characters that turn away nearly every guess before the
// database is asked); this keeps trying from being cheap as well. Valid keys behind the same address never notice.

/** Failed key checks that one address may have in any window. */
const MAX_FAILURES = 100;
/** The oldest are forgotten: an attacker with more addresses than this gains nothing by it. */
const MAX_ADDRESSES = 10_000;

/** Counts failed key checks by address, in this process. */
export interface FloodGuard {
  /**
   * Counts one failure.
   * @param address of the client's end of the connection
   * @returns the 429 to answer with instead of the 401, once the address has had its share
   */
  countFailure(address: string): ApiError | null;
}

export function createFloodGuard(windowMs: number, now: () => number = Date.now): FloodGuard {
  const failures = new Map<string, number[]>();
  return {
    countFailure(address) {
      const network = networkOf(address);
      const at = now();
      const recent = (failures.get(network) ?? []).filter((time) => time > at - windowMs);
      // Put back at the end, so that the first entry of the map is the one unheard of for the longest.
      failures.delete(network);
      failures.set(network, recent);
      if (failures.size > MAX_ADDRESSES) failures.delete(failures.keys().next().value ?? '');
      const oldest = recent[0];
      if (recent.length < MAX_FAILURES || oldest === undefined) {
        recent.push(at);
        return null;
      }
      const wait = Math.max(1, Math.ceil((oldest + windowMs - at) / 1000));
      return problem('rate_limited', {
        values: {
          who: 'An address without a valid API key',
          quota: MAX_FAILURES,
          window: Math.ceil(windowMs / 1000),
          wait,
        },
        headers: { 'retry-after': String(wait) },
      });
    },
  };
}

/** One subscriber of IPv6 has a whole /64 to send from. */
function networkOf(address: string): string {
  if (!ipaddr.isValid(address)) return address;
  const parsed = ipaddr.process(address);
  return parsed.kind() === 'ipv6' ? parsed.toByteArray().slice(0, 8).join('.') : parsed.toString();
}

// Whoever has no valid key can cause as many log lines as requests.

const EVERY_MS = 10_000;

/**
 * Asked before a line of this status is written.
 * @returns how many have been left out since the one before; null if this one is to be left out as well
 */
export type Sample = (status: number) => number | null;

/** Lets one line of each status through in any 10 s. */
export function createSample(now: () => number = Date.now): Sample {
  const lines = new Map<number, { readonly at: number; suppressed: number }>();
  return (status) => {
    const line = lines.get(status);
    if (line && now() < line.at + EVERY_MS) {
      line.suppressed += 1;
      return null;
    }
    lines.set(status, { at: now(), suppressed: 0 });
    return line?.suppressed ?? 0;
  };
}
