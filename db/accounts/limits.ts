import { type Database, only, run, span } from '../client.ts';

/**
 * Above this limit, a window is counted in steps, this many per window. Otherwise the cost of a
 * count would grow with the limit. A row holds up to twice as many entries.
 */
export const STEPS = 300;

/** Places in a key's sliding window that were taken together. */
export interface Places {
  readonly taken: number;
  /** Used places of the whole limit, including these. */
  readonly used: number;
  /**
   * Identifies these places when some are given back to `takePlaces`. Null if no places were taken.
   */
  readonly takenAt: string | null;
  /** Time until a place becomes free, if all are used. */
  readonly freeInMs: number;
  /** Time until the whole window is empty. */
  readonly emptyInMs: number;
  /** PostgreSQL's time of this result, in milliseconds since 1970. */
  readonly atMs: number;
}

/**
 * Takes places in the exact sliding window of a key. It is one statement on one row, so that all
 * API processes share one window (ARCHITECTURE.md, Invariants, R1). Up to a limit of `STEPS`,
 * places count from now. Above it, they may be used during one step (the window divided by `STEPS`)
 * and count from its end. A rejected call changes nothing.
 * @param wanted the number of places to take; fewer or 0 may be taken
 * @param back unused places of an earlier call whose step is over
 */
export async function takePlaces(
  db: Database,
  key: { readonly keyId: string; readonly requestsPerMinute: number },
  windowMs: number,
  wanted: number,
  back: { readonly count: number; readonly takenAt: string | null },
): Promise<Places> {
  const { keyId, requestsPerMinute: limit } = key;
  const step = limit > STEPS ? windowMs / STEPS : 0;
  const row = await run<Places>(db)`
    select taken, used, taken_at::text as "takenAt",
           coalesce(extract(epoch from free_in) * 1000, 0)::float8 as "freeInMs",
           coalesce(extract(epoch from empty_in) * 1000, 0)::float8 as "emptyInMs",
           (extract(epoch from clock_timestamp()) * 1000)::float8 as "atMs"
      from take_places(${keyId}, ${limit}, ${span(windowMs)}, ${span(step)},
                       ${wanted}, ${back.count}, ${back.takenAt}::timestamptz)`;
  return only(row);
}
