import { type Database, only, run, span } from '../client.ts';

/** Places in a key's sliding window that were taken together. */
export interface Places {
  readonly taken: number;
  /** Used places of the whole limit, including these. */
  readonly used: number;
  /** Time until a place becomes free, if all are used. */
  readonly freeInMs: number;
  /** Time until the whole window is empty. */
  readonly emptyInMs: number;
  /** PostgreSQL's time of this result, in milliseconds since 1970. */
  readonly atMs: number;
}

/**
 * Takes places in the sliding window of a key. It is one statement on one row, so that all API
 * processes share one window (ARCHITECTURE.md, Invariants, R1). If no place is free, it changes
 * nothing.
 * @param wanted the number of places to take; fewer or 0 may be taken
 */
export async function takePlaces(
  db: Database,
  key: { readonly keyId: string; readonly requestsPerMinute: number },
  windowMs: number,
  wanted: number,
): Promise<Places> {
  const row = await run<Places>(db)`
    select taken, used,
           coalesce(extract(epoch from free_in) * 1000, 0)::float8 as "freeInMs",
           coalesce(extract(epoch from empty_in) * 1000, 0)::float8 as "emptyInMs",
           (extract(epoch from clock_timestamp()) * 1000)::float8 as "atMs"
      from take_places(${key.keyId}, ${key.requestsPerMinute}, ${span(windowMs)}, ${wanted})`;
  return only(row);
}
