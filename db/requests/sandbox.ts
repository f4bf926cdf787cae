import { sql } from 'drizzle-orm';
import { type Database, query } from '../client.ts';
import { Refusal } from '../errors.ts';
import type { TestOutcome, WantedType } from '../words.ts';

// Requests of sandboxes. They are settled as all others are, but nobody else's answer is theirs.

/**
 * Makes requests of a sandbox `in-progress`. Safe to repeat.
 * @returns without those that are final already
 */
export async function beginForSandbox(db: Database, requestIds: readonly string[]) {
  return await query(db, (tx) =>
    tx.execute<{ requestId: string; npi: string; wantedType: WantedType; deadline: number }>(sql`
      with open as materialized (
        select id from requests where id = any(${sql.param(requestIds)}) and settled_at is null order by id for update
      )
      update requests r
         set status = 'in-progress', started_at = coalesce(started_at, date_trunc('milliseconds', clock_timestamp()))
        from open where r.id = open.id
      returning r.id as "requestId", npi, wanted_type as "wantedType",
                extract(epoch from deadline_at)::float8 * 1000 as deadline`),
  );
}

/**
 * What a request of a sandbox is to come to, and how long ago it was accepted.
 * @throws {Refusal} `request_missing` for an unknown id, and for one of no sandbox
 */
export async function readTestOutcome(db: Database, requestId: string) {
  const [test] = await query(db, (tx) =>
    tx.execute<{ outcome: TestOutcome; ageMs: number }>(sql`
      select test_outcome as outcome, extract(epoch from clock_timestamp() - accepted_at)::float8 * 1000 as "ageMs"
        from requests where id = ${requestId} and test_outcome is not null`),
  );
  if (!test) throw new Refusal('request_missing');
  return test;
}
