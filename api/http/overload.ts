import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { Request } from '@hapi/hapi';
import ipaddr from 'ipaddr.js';
import { type ApiError, problem } from '../problems.ts';

// A client that sends more than its share waits in line before it gets a connection to PostgreSQL.
// If the wait would be too long, the request is rejected at once. Other clients don't notice.

/** Limits on running and waiting work. */
interface LaneLimits {
  readonly atOnce: number;
  /** Running work of one organization, or of one address whose key is not known yet. */
  readonly each: number;
  /** Running and waiting work of one organization or address (`most`) and of all (`mostOfAll`). */
  readonly most: number;
  readonly mostOfAll: number;
  /**
   * Longest expected wait: behind the client's own work (`ownPatienceMs`), and behind that of
   * others (`patienceMs`). Work that would wait longer is rejected.
   */
  readonly ownPatienceMs: number;
  readonly patienceMs: number;
}

/** A place in the line. */
export interface Place {
  /**
   * Does the work when its turn comes, then leaves the line.
   * @throws {ApiError} 503 after 12 s in line, or after `leave`
   */
  inTurn<T>(work: () => Promise<T>): Promise<T>;
  /** Gives up the place, unless it is already used for work. */
  leave(): void;
}

/** Limit on the actual wait, which can exceed the expected one if PostgreSQL hangs. */
const LONGEST_WAIT_MS = 12_000;

/**
 * Creates lanes in which work takes turns: each waiting organization gets one turn before any gets
 * a second one.
 */
export function createLanes(
  { atOnce, each, most, mostOfAll, ownPatienceMs, patienceMs }: LaneLimits,
  now = () => performance.now(),
) {
  const lanes = new Map<string, { here: number; running: number; waiting: (() => void)[] }>();
  let here = 0;
  let running = 0;
  let usualMs = 25;
  // Average time between two departures while others wait. This is the cost of the line, also if
  // this process is short of CPU.
  let everyMs = usualMs / atOnce;
  let measuredAt = now();
  let leftAt: number | null = null;
  let asking = 0;
  // The measurement counts less as time passes, so that a line that was once slow does not reject
  // work forever.
  const lately = () =>
    Math.max(everyMs / 2 ** ((now() - measuredAt) / (64 * everyMs)), usualMs / atOnce);
  const refuse = (code: 'too_many_at_once' | 'overloaded', waitMs: number) =>
    problem(code, { wait: Math.max(1, Math.ceil(waitMs / 1000)) });
  const next = () => {
    for (const [who, lane] of lanes) {
      if (running >= atOnce) return;
      const begin = lane.running < each ? lane.waiting.shift() : undefined;
      if (!begin) continue;
      // At the end of the map, this lane comes after all others.
      lanes.delete(who);
      lanes.set(who, lane);
      running += 1;
      lane.running += 1;
      begin();
    }
  };
  return {
    /**
     * Enters the line and does the work when its turn comes.
     * @throws {ApiError} as `enter` and `Place.inTurn`
     */
    inTurn<T>(who: string, work: () => Promise<T>): Promise<T> {
      return this.enter(who).inTurn(work);
    },
    /**
     * Enters the line.
     * @throws {ApiError} at once, with nothing done: 429 if `who` has too much work here, 503 if
     * all together have
     */
    enter(who: string): Place {
      const lane = lanes.get(who) ?? { here: 0, running: 0, waiting: [] };
      const ahead = lane.here < each ? 0 : (lane.here * usualMs) / each;
      if (lane.here >= most || ahead > ownPatienceMs) throw refuse('too_many_at_once', ahead);
      // If other lanes take every slot, each of them gets one turn before each turn of this lane,
      // because a lane that had its turn comes back for more.
      const turns = here - lane.here < atOnce ? 0 : (lane.here - lane.running + 1) * lanes.size;
      const wait = turns * lately();
      if (here >= mostOfAll || wait > patienceMs) throw refuse('overloaded', wait);
      lanes.set(who, lane);
      lane.here += 1;
      here += 1;
      let isTaken = true;
      const leave = () => {
        isTaken = false;
        lane.here -= 1;
        here -= 1;
        if (lane.here === 0) lanes.delete(who);
      };
      return {
        leave: () => isTaken && leave(),
        async inTurn(work) {
          if (!isTaken) throw problem('overloaded', { wait: 1 });
          isTaken = false;
          asking += 1;
          const { promise: turn, resolve: begin, reject } = Promise.withResolvers<void>();
          lane.waiting.push(begin);
          const giveUp = () => {
            lane.waiting = lane.waiting.filter((other) => other !== begin);
            reject(problem('overloaded', { wait: 5 }));
          };
          next();
          const timer = lane.waiting.includes(begin)
            ? setTimeout(giveUp, LONGEST_WAIT_MS)
            : undefined;
          try {
            await turn;
            const begun = now();
            try {
              return await work();
            } finally {
              running -= 1;
              lane.running -= 1;
              // The increase is capped, because one slow piece of work says little about the next.
              usualMs += Math.min(now() - begun - usualMs, usualMs) / 8;
            }
          } finally {
            clearTimeout(timer);
            asking -= 1;
            // Only work that waits for its turn is measured. A place whose body arrives slowly
            // delays no other work, so it says nothing about the cost of the line.
            if (leftAt !== null) {
              everyMs = lately() + (now() - leftAt - lately()) / 32;
              measuredAt = now();
            }
            leftAt = asking < atOnce ? null : now();
            leave();
            next();
          }
        },
      };
    },
  };
}

/** Shares out the connections: one half for writes, the other for key lookups and reads. */
export function shareOut(connections: number) {
  const half = Math.ceil(connections / 2);
  const lanes = (limits: Omit<LaneLimits, 'atOnce'>, atOnce = half) =>
    createLanes({ atOnce, ...limits });
  return {
    reads: lanes({
      each: half - 1 || 1,
      most: 1000,
      mostOfAll: 5000,
      ownPatienceMs: 1e4,
      patienceMs: 1e4,
    }),
    // Two per organization, so that while one finishes, the next gets as far as its balance.
    writes: lanes({ each: 2, most: 100, mostOfAll: 1000, ownPatienceMs: 1000, patienceMs: 300 }),
    // A long poll costs memory but no connection, so it gets a free slot at once. A customer's two
    // organizations, for live and test keys, leave slots for others.
    waits: lanes(
      { each: 500, most: 500, mostOfAll: 1500, ownPatienceMs: 1e9, patienceMs: 1e9 },
      500,
    ),
  };
}

/**
 * Runs `work` once the response is sent or the client is gone. Runs it now if that already happened
 * while something was awaited.
 */
export function whenOver({ raw: { res } }: Request, work: () => void): void {
  if (res.closed) work();
  else res.once('close', work);
}

/**
 * Reads for the request's organization, in its turn.
 * @throws {ApiError} as `inTurn` of lanes
 */
export function readInTurn<T>(
  { server, auth }: Request,
  work: (organizationId: string) => Promise<T>,
): Promise<T> {
  const { organizationId } = auth.credentials;
  return server.app.lanes.reads.inTurn(organizationId, () => work(organizationId));
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
