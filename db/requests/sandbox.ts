import { sql } from 'drizzle-orm';
import { type Database, run } from '../client.ts';
import type { TestOutcome, WantedType } from '../words.ts';

/**
 * Makes requests of a sandbox `in-progress`, as `joinLookups` does with others. Safe to repeat.
 * @returns without those that are final already; the deadline in milliseconds since the epoch
 */
export async function beginForSandbox(db: Database, requestIds: readonly string[]) {
  type Begun = Readonly<Record<'requestId' | 'npi', string>> & { readonly deadline: number };
  return await run<Begun & { wantedType: WantedType; outcome: TestOutcome }>(db)`
    with open as materialized (
      select id from requests where id = any(${sql.param(requestIds)}) and settled_at is null order by id for update
    )
    update requests r
       set status = 'in-progress', started_at = coalesce(started_at, date_trunc('milliseconds', clock_timestamp()))
      from open where r.id = open.id
    returning r.id as "requestId", npi, wanted_type as "wantedType", test_outcome as outcome,
              extract(epoch from deadline_at)::float8 * 1000 as deadline`;
}
