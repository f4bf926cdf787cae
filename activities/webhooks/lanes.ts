// Room for deliveries under way in this process. What finds no room waits outside, as a retry of its activity, and
// costs no slot meanwhile.

export interface Lanes {
  /** Asks for room to send something to a host now. */
  enter(organizationId: string, host: string): Entry;
}

export type Entry =
  | { readonly kind: 'go'; readonly leave: (durationMs: number | null) => void }
  | { readonly kind: 'wait'; readonly afterMs: number };

/** How many deliveries may be under way at once. */
export interface LaneLimits {
  readonly total: number;
  readonly perOrganization: number;
  /** Of one organization. */
  readonly perHost: number;
}

/** The slots of a worker for deliveries. */
export const WEBHOOK_SLOTS = 100;

/** Less than the slots, so that looking whether something may be sent never waits for what is being sent. */
export const WEBHOOK_LANES: LaneLimits = { total: 80, perOrganization: 20, perHost: 10 };

interface Line {
  busy: number;
  /** How long attempts take: an exponential average. */
  meanMs: number;
  /** When the last of those that wait has its turn. */
  turnAt: number;
}

const FIRST_MEAN_MS = 100;
const LONGEST_WAIT_MS = 600_000;
/** Idle lines are dropped beyond this. */
const LINES_KEPT = 1000;

/**
 * Makes the room: so many per host, so many per organization, and for no organization more than what is left for the
 * others together. Who has to wait gets a turn behind those that wait already, as far off as their attempts take, so
 * that thousands in line for one host look once or twice each, not every second.
 */
export function createLanes({ total, perOrganization, perHost }: LaneLimits): Lanes {
  const lines = new Map<string, Line>();
  let all = 0;

  const lineOf = (key: string): Line => {
    const line = lines.get(key) ?? { busy: 0, meanMs: FIRST_MEAN_MS, turnAt: 0 };
    lines.set(key, line);
    return line;
  };
  const dropIdle = () => {
    if (lines.size <= LINES_KEPT) return;
    const now = Date.now();
    for (const [key, { busy, turnAt }] of lines) if (busy === 0 && turnAt < now) lines.delete(key);
  };

  return {
    enter(organizationId, host) {
      dropIdle();
      const ofHost = lineOf(`${organizationId} ${host}`);
      const ofOrganization = lineOf(organizationId);
      const share = Math.max(1, Math.min(perOrganization, total - all));
      if (ofHost.busy >= perHost) return { kind: 'wait', afterMs: takeTurn(ofHost, perHost) };
      if (ofOrganization.busy >= share || all >= total) {
        return { kind: 'wait', afterMs: takeTurn(ofOrganization, share) };
      }
      all += 1;
      ofHost.busy += 1;
      ofOrganization.busy += 1;
      return {
        kind: 'go',
        leave(durationMs) {
          all -= 1;
          for (const line of [ofHost, ofOrganization]) {
            line.busy -= 1;
            if (durationMs !== null) line.meanMs += (durationMs - line.meanMs) / 5;
          }
        },
      };
    },
  };
}

function takeTurn(line: Line, width: number): number {
  const now = Date.now();
  const turnAt = Math.max(line.turnAt, now) + line.meanMs / width;
  if (turnAt - now > LONGEST_WAIT_MS) return Math.ceil(LONGEST_WAIT_MS * (0.5 + Math.random() / 2));
  line.turnAt = turnAt;
  return Math.ceil(turnAt - now);
}
