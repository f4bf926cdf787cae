import { type Database, only, run, span } from '../connection/client.ts';

/**
 * The result of `takePlaces`. An API key has a rate limit with a sliding window, and each request
 * needs one place in it.
 */
export interface Places {
  readonly taken: number;
  /** The number of places in use, including those just taken. */
  readonly used: number;
  /** Milliseconds until the next place becomes free if all are in use, otherwise 0. */
  readonly freeInMs: number;
  /** Milliseconds until no place is in use. */
  readonly emptyInMs: number;
  /** PostgreSQL's time of this result, in milliseconds since 1970. */
  readonly atMs: number;
}

/**
 * Takes places under the rate limit of a key. It is one statement on one row, so that all API
 * processes share the limit (ARCHITECTURE.md, Invariants, R1). If no place is free, it changes
 * nothing.
 * @param wanted the number of places to take; if fewer are free, only those are taken
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
