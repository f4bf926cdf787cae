import { sql } from 'drizzle-orm';
import { balanceLock } from '../accounts/balance.ts';
import { type Database, run, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { countSettled, type Ended } from '../metrics.ts';
import type { FinalStatus } from '../words.ts';
import {
  CLAIMS,
  claimEntitlements,
  type KnownWindows,
  knownEmails,
  requireClaims,
  sandboxEmails,
} from './entitlements.ts';

/**
 * How a lookup ended. After `answered`, the request is completed if the directory holds a usable
 * email, and is `not_found` otherwise. After `failed`, the request fails.
 */
export type LookupEnd = 'answered' | 'failed';

export interface Settlement extends Ended {
  readonly status: FinalStatus;
  /** False if the request was already final. Settling it again changes nothing. */
  readonly settledNow: boolean;
  /** The recorded reason for a missing email; null if there is an email. */
  readonly reason: string | null;
}

/**
 * Makes one request final, in one transaction with its charge or the release of its credits. Safe
 * to repeat and to run concurrently. If a result and a timeout arrive at the same time, one of them
 * waits for the other's lock and then finds the request final.
 *
 * If the result arrives after the deadline, the request fails. The addresses that the lookup found
 * stay in the directory for the next request (DECISIONS.md, Requests and batches).
 * @param reason the reason for a missing email, for operators; not recorded if there is an email
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function settle(
  db: Database,
  requestId: string,
  end: LookupEnd,
  reason: string,
  rules: KnownWindows,
): Promise<Settlement> {
  const settled = await transaction(db, (tx) =>
    settleIn(tx, requestId, end, reason, rules),
  );
  if (settled.settledNow) countSettled(settled);
  return settled;
}

/** Settles a request within the caller's transaction. See `settle`. */
export async function settleIn(
  tx: Transaction,
  requestId: string,
  end: LookupEnd,
  reason: string,
  rules: KnownWindows,
): Promise<Settlement> {
  await lock(tx, requestId);
  const [settled] = await write(tx, requestId, end, reason, rules);
  if (!settled) throw new Refusal('request_missing');
  requireClaims(settled);
  await run(tx)`select close_lookups(array[${requestId}])`;
  return settled;
}

/**
 * Locks the organization's balance and then the request. All transactions lock in this order, so
 * that they cannot deadlock.
 */
async function lock(tx: Transaction, requestId: string): Promise<void> {
  const owner = sql`(select organization_id from requests where id = ${requestId})`;
  await run(tx)`
    with locked as (
      select organization_id from credit_balances where organization_id = ${owner} for update
    )
    select from locked join requests using (organization_id)
     where requests.id = ${requestId}
       for update of requests`;
}

/**
 * Writes the request and its entitlement in one statement. Triggers add the charge or the release
 * to the ledger.
 */
async function write(
  tx: Transaction,
  requestId: string,
  end: LookupEnd,
  reason: string,
  windows: KnownWindows,
) {
  const asked = {
    organizationId: sql`open.organization_id`,
    npis: sql`case when not open.failed and open.test_outcome is null then open.npi end`,
    requestedType: sql`open.requested_type`,
    at: sql`open.at`,
    lookupId: sql`open.lookup_id`,
  };
  const outcome = sql`case when not open.failed then open.test_outcome end`;
  const test = { ...asked, npis: sql`open.npi`, outcome, isDue: sql`true` };
  return await tx.execute<
    Record<'charged' | 'claimed', number> & {
      [Field in keyof Settlement]: Settlement[Field];
    }
  >(sql`
    with open as materialized (
      select r.*, at, at > deadline_at as late, at > deadline_at or ${end === 'failed'} as failed
        from requests r, date_trunc('milliseconds', clock_timestamp()) at
       where id = ${requestId} and settled_at is null
    ), settled as (
      update requests r
         set status = case
               when open.failed then 'failed'
               when known.npi is null then 'not_found'
               else 'completed'
             end,
             reason = case
               when open.late and ${reason} not like 'deadline%' then 'deadline'
               when known.npi is null then ${reason}
             end,
             replayed = coalesce(known.replayed, false),
             email = known.email,
             email_type = known.email_type,
             email_last_validated_at = known.email_last_validated_at,
             settled_at = open.at,
             suppression_change = (select n from suppression_changes)
        from open left join lateral (
          select * from (${knownEmails(asked, windows)}) live
          union all select * from (${sandboxEmails(test, windows.replayMs)}) test
        ) known on true
       where r.id = open.id
      returning r.*
    ), claimed as (${claimEntitlements(windows.replayMs)})
    select coalesce(s.status, r.status) as status,
           coalesce(s.reason, r.reason) as reason,
           s.id is not null as "settledNow",
           r.organization_id as "organizationId",
           r.cost,
           s.email_type as "emailType",
           coalesce(s.replayed, r.replayed) as replayed,
           (extract(epoch from s.settled_at - r.accepted_at))::float8 as seconds,
           ${CLAIMS}
      from requests r left join settled s using (id)
     where r.id = ${requestId}`);
}

/**
 * Settles overdue requests of one organization as `failed` and releases their credits. All are
 * settled in one transaction, because after an outage there may be thousands. Requests that another
 * transaction has locked are skipped, because that transaction may settle them. If it does not, the
 * next call settles them.
 * @returns the settled requests, at most `limit`
 */
export async function settleOverdue(
  db: Database,
  { organizationId, limit }: { readonly organizationId: string; readonly limit: number },
) {
  const ended = await transaction(db, async (tx) => {
    await balanceLock(tx, organizationId);
    const settled = await tx.execute<Ended & { requestId: string; batchId: string }>(sql`
      with overdue as materialized (
        select id, at
          from requests, date_trunc('milliseconds', clock_timestamp()) at
         where organization_id = ${organizationId}
           and settled_at is null
           and deadline_at < at
         limit ${limit}
           for update of requests skip locked
      ), settled as (
        update requests r
           set status = 'failed', reason = 'deadline', settled_at = at
          from overdue
         where r.id = overdue.id
        returning r.*
      )
      select id as "requestId",
             batch_id as "batchId",
             organization_id as "organizationId",
             status,
             cost,
             replayed,
             (extract(epoch from settled_at - accepted_at))::float8 as seconds
        from settled`);
    const ids = settled.map(({ requestId }) => requestId);
    if (ids.length > 0) await run(tx)`select close_lookups(${sql.param(ids)})`;
    return [...settled];
  });
  for (const one of ended) countSettled(one);
  return ended;
}
