import { type Database, only, run, span } from '../client.ts';

/**
 * Above so many requests a window is counted by as many steps, or it would cost ever more. A row
 * holds twice as many.
 */
export const STEPS = 300;

/** Places in a key's sliding window, taken together. */
export interface Places {
  readonly taken: number;
  /** Of the whole limit, by everybody and with these. */
  readonly used: number;
  /** What `takePlaces` knows them by when some are given back; null if none were taken. */
  readonly takenAt: string | null;
  /** Until a place becomes free, if none is. */
  readonly freeInMs: number;
  /** Until the whole window is empty again. */
  readonly emptyInMs: number;
  /** When this was so, by PostgreSQL's clock, in milliseconds since 1970. */
  readonly atMs: number;
}

/**
 * Takes places in the exact sliding window of a key: one statement on one row, so that all API
 * processes share one window (ARCHITECTURE.md, Invariants, R1). At a limit above `STEPS` they may
 * be used for a step's time, the window's by `STEPS`, and count from its end; else now. A refusal
 * changes nothing.
 * @param wanted how many it asks for; it may get fewer, or none
 * @param back places taken before that were not used and whose time is over
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
