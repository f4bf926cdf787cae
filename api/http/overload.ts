import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { Request } from '@hapi/hapi';
import ipaddr from 'ipaddr.js';
import { type ApiError, problem } from '../problems.ts';

// Whoever asks for more than his share waits in front of the connections to PostgreSQL, not for one, and is refused at
// once if that would take too long. So it is no matter to anybody else.

/** What may be under way at once, and how many may wait for it. */
interface LaneLimits {
  readonly atOnce: number;
  /** Of one organization, or one address whose key is not known yet. */
  readonly each: number;
  /** Under way and waiting: of one, and of all. */
  readonly most: number;
  readonly mostOfAll: number;
  /** Nobody is let in who is expected to wait longer: behind his own, and behind others. */
  readonly ownPatienceMs: number;
  readonly patienceMs: number;
}

/** A place in the line. */
export interface Place {
  /** Does the work when its turn has come, and leaves. @throws {ApiError} 503 after 12 s in line, or after `leave` */
  inTurn<T>(work: () => Promise<T>): Promise<T>;
  /** Gives the place up, if no work has been asked for. */
  leave(): void;
}

/** Whatever was expected: if PostgreSQL hangs, what is under way ends late. */
const LONGEST_WAIT_MS = 12_000;

/** Work that takes turns: of those who wait, each organization has the next turn once. */
export function createLanes(
  { atOnce, each, most, mostOfAll, ownPatienceMs, patienceMs }: LaneLimits,
  now = () => performance.now(),
) {
  const lanes = new Map<string, { here: number; running: number; waiting: (() => void)[] }>();
  let here = 0;
  let running = 0;
  let usualMs = 25;
  // From one that leaves to the next while others wait: what the line costs, also if this process is short of CPU.
  let everyMs = usualMs / atOnce;
  let measuredAt = now();
  let leftAt: number | null = null;
  let asking = 0;
  // What was measured says ever less as time goes by: a line that was slow once refuses nobody for good.
  const lately = () => Math.max(everyMs / 2 ** ((now() - measuredAt) / (64 * everyMs)), usualMs / atOnce);
  const refuse = (code: 'too_many_at_once' | 'overloaded', waitMs: number) =>
    problem(code, { wait: Math.max(1, Math.ceil(waitMs / 1000)) });
  const next = () => {
    for (const [who, lane] of lanes) {
      if (running >= atOnce) return;
      const begin = lane.running < each ? lane.waiting.shift() : undefined;
      if (!begin) continue;
      // To the end of the map: everybody else comes first.
      lanes.delete(who);
      lanes.set(who, lane);
      running += 1;
      lane.running += 1;
      begin();
    }
  };
  return {
    /** Enters, and does the work when its turn has come. @throws {ApiError} as `enter` and `Place.inTurn` */
    inTurn<T>(who: string, work: () => Promise<T>): Promise<T> {
      return this.enter(who).inTurn(work);
    },
    /** @throws {ApiError} 429 if too much of `who` is here, 503 if too much of all: at once, with nothing done */
    enter(who: string): Place {
      const lane = lanes.get(who) ?? { here: 0, running: 0, waiting: [] };
      const ahead = lane.here < each ? 0 : (lane.here * usualMs) / each;
      if (lane.here >= most || ahead > ownPatienceMs) throw refuse('too_many_at_once', ahead);
      // Where others leave no room, each of them has a turn before each of one's own: who has had one comes again.
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
          const timer = lane.waiting.includes(begin) ? setTimeout(giveUp, LONGEST_WAIT_MS) : undefined;
          try {
            await turn;
            const begun = now();
            try {
              return await work();
            } finally {
              running -= 1;
              lane.running -= 1;
              // One that was held up says little about the next.
              usualMs += Math.min(now() - begun - usualMs, usualMs) / 8;
            }
          } finally {
            clearTimeout(timer);
            asking -= 1;
            // A place whose body is slow to arrive says nothing of what the line costs: nobody waits for that.
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

/** Half of the connections are for what writes, the others for keys and reads. */
export function shareOut(connections: number) {
  const half = Math.ceil(connections / 2);
  const lanes = (limits: Omit<LaneLimits, 'atOnce'>, atOnce = half) => createLanes({ atOnce, ...limits });
  return {
    reads: lanes({ each: half - 1 || 1, most: 1000, mostOfAll: 5000, ownPatienceMs: 1e4, patienceMs: 1e4 }),
    // Two of one organization: while one ends, the next gets as far as its balance.
    writes: lanes({ each: 2, most: 100, mostOfAll: 1000, ownPatienceMs: 1000, patienceMs: 300 }),
    // A long poll costs memory, and no connection: whoever finds room has it at once. A customer's two organizations, of
    // live and test keys, leave room.
    waits: lanes({ each: 500, most: 500, mostOfAll: 1500, ownPatienceMs: 1e9, patienceMs: 1e9 }, 500),
  };
}

/** Does what is due when a request is answered or its client has gone: now, if either was while something was awaited. */
export function whenOver({ raw: { res } }: Request, work: () => void): void {
  if (res.closed) work();
  else res.once('close', work);
}

/** Reads for the organization whose request it is, in its turn. @throws {ApiError} as `inTurn` of lanes */
export function readInTurn<T>(
  { server, auth }: Request,
  work: (organizationId: string) => Promise<T>,
): Promise<T> {
  const { organizationId } = auth.credentials;
  return server.app.lanes.reads.inTurn(organizationId, () => work(organizationId));
}

/**
 * Who is at the other end: the peer, or behind proxies of ours the last address that is none of them. What stands
 * before it in `X-Forwarded-For` is the client's own word. Of an IPv6 address it is the network: one subscriber has a
 * whole /64 to send from.
 * @param trustedProxies CIDR ranges
 */
export function createAddressOf(trustedProxies: readonly string[]): (request: IncomingMessage) => string {
  const isOurs = createIsOurs(trustedProxies);
  return ({ socket, headers }) => {
    const peer = socket.remoteAddress ?? '';
    const hops = String(headers['x-forwarded-for'] ?? '').split(',');
    const path = [...hops.map((hop) => hop.trim()).filter((hop) => hop !== ''), peer];
    return networkOf(path.findLast((address) => !isOurs(address)) ?? peer);
  };
}

/**
 * Returns the address that a connection counts for, or null if its peer is one of our proxies: many clients share those.
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

/** Puts an entry at the end of a map, and forgets the one unheard of for the longest if there are too many. */
export function keepLast<T>(map: Map<string, T>, key: string, value: T, atMost: number): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > atMost) map.delete(map.keys().next().value ?? '');
}

// Guessing keys is hopeless (178 random bits, and check characters that turn away nearly every guess before the
// database is asked); this keeps trying from being cheap as well.

/** Failed key checks that one address may have in any window. */
const MAX_FAILURES = 100;
/** The oldest are forgotten: an attacker with more addresses than this gains nothing by it. */
const MAX_ADDRESSES = 10_000;

/** Counts failed key checks by address, in this process. */
export function createFloodGuard(windowMs: number, now: () => number = Date.now) {
  const failures = new Map<string, number[]>();
  const recent = (address: string) => (failures.get(address) ?? []).filter((at) => at > now() - windowMs);
  /** The 429 to answer with instead of anything else, once the address has had its share. */
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
    /** Counts one failure. @returns as `refusal`, of the failures before */
    countFailure(address: string): ApiError | null {
      const refused = refusal(address);
      if (refused) return refused;
      keepLast(failures, address, [...recent(address), now()], MAX_ADDRESSES);
      return null;
    },
  };
}

// Whoever has no valid key can cause as many log lines as requests.

const EVERY_MS = 10_000;

export type Sample = ReturnType<typeof createSample>;

/**
 * Lets one line of each status through in any 10 s.
 * @returns asked before a line is written: how many have been left out since the one before; null if this one is to be
 * left out as well
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
