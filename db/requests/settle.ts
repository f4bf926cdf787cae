import { and, eq, getTableColumns, isNull, lt, sql } from 'drizzle-orm';
import { balanceLock } from '../accounts/balance.ts';
import {
  clock,
  type Database,
  only,
  run,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { countSettled, type Ended } from '../operations/metrics.ts';
import { requests } from '../schema.ts';
import type { FinalStatus, Reason } from '../words.ts';
import {
  claimEntitlements,
  findKnownEmails,
  type KnownEmail,
  type KnownWindows,
} from './entitlements.ts';
import { findSandboxEmails } from './sandbox.ts';

type Request = typeof requests.$inferSelect;

/**
 * How a lookup ended. After `finished`, the request is completed if there is a usable email, and is
 * `not_found` otherwise. After `failed`, the request fails.
 */
export type LookupEnd = 'finished' | 'failed';

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
 * stay stored for the next request (DECISIONS.md, Requests and batches).
 * @param reason the reason for a missing email, for operators; not recorded if there is an email. Null
 * if an email was found. If it cannot be used any more, `reasonOfLoss` finds the reason
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function settle(
  db: Database,
  requestId: string,
  end: LookupEnd,
  reason: string | null,
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
  reason: string | null,
  rules: KnownWindows,
): Promise<Settlement> {
  const request = await lockRequest(tx, requestId);
  if (request.settledAt !== null) {
    return settlementOf(request, request.settledAt, false);
  }
  const { at } = request;
  const isLate = at > request.deadlineAt;
  let email: KnownEmail | undefined;
  if (end === 'finished' && !isLate) {
    email = await findEmail(tx, request, at, rules);
  }
  let settled: Request;
  if (email) {
    settled = await complete(tx, requestId, email, at, rules.replayMs);
  } else if (isLate) {
    const lateReason = reason?.startsWith('deadline') ? reason : 'deadline';
    settled = await endWithoutEmail(tx, requestId, 'failed', lateReason, at);
  } else {
    const status = end === 'failed' ? 'failed' : 'not_found';
    const known = reason ?? (await reasonOfLoss(tx, request));
    settled = await endWithoutEmail(tx, requestId, status, known, at);
  }
  await run(tx)`select close_lookups(array[${requestId}])`;
  return settlementOf(settled, at, true);
}

/**
 * Locks the organization's balance and then the request, and reads the time. Settlements and
 * submits lock in the order balance, request, entitlement, lookup, so that they cannot deadlock.
 * @throws {Refusal} `request_missing` for an unknown id
 */
async function lockRequest(
  tx: Transaction,
  requestId: string,
): Promise<Request & { readonly at: Date }> {
  const isRequest = eq(requests.id, requestId);
  // The organization of a request never changes, so it can be read before the locks.
  const locked = await run(tx)`
    select from credit_balances
     where organization_id = (select organization_id from requests where id = ${requestId})
       for update`;
  if (locked.length === 0) throw new Refusal('request_missing');
  const at = sql`clock_timestamp()`.mapWith(requests.settledAt);
  const columns = { ...getTableColumns(requests), at };
  return only(await tx.select(columns).from(requests).where(isRequest).for('update'));
}

/** Finds the email that completes a request whose lookup has ended. */
async function findEmail(
  tx: Transaction,
  { organizationId, npi, requestedType, lookupId, testOutcome }: Request,
  at: Date,
  rules: KnownWindows,
): Promise<KnownEmail | undefined> {
  if (testOutcome === null) {
    const asked = { organizationId, npis: [npi], requestedType, at, lookupId };
    const live = await findKnownEmails(tx, asked, rules);
    return live.get(npi);
  }
  const outcomes = new Map([[npi, testOutcome]]);
  const asked = { organizationId, requestedType, at, outcomes };
  const sandbox = await findSandboxEmails(tx, asked, rules.replayMs);
  return sandbox.get(npi);
}

/**
 * Returns why an email that was just found cannot be used any more. If an address of the person is
 * still valid, it became too old since then. Otherwise it was suppressed or erased.
 */
async function reasonOfLoss(
  tx: Transaction,
  { npi, lookupId }: Request,
): Promise<Reason> {
  const rows = await run<{ readonly reason: Reason }>(tx)`
    with valid as (
      select email from stored_emails where npi = ${npi} and verdict = 'valid'
      union all
      select email from candidates where lookup_id = ${lookupId} and verdict = 'valid'
    ), usable as (
      select exists (select from valid where not is_suppressed(${npi}, email)) as is_left
    )
    select coalesce(refusal_of(${npi}),
                    case when is_left then 'none_valid' else 'suppressed' end) as reason
      from usable`;
  return only(rows).reason;
}

/** Completes a request. Triggers add the charge, or the release of a replay, to the ledger. */
async function complete(
  tx: Transaction,
  requestId: string,
  email: KnownEmail,
  at: Date,
  replayMs: number,
): Promise<Request> {
  const completed = await tx
    .update(requests)
    .set({
      status: 'completed',
      replayed: email.replayed,
      email: email.email,
      emailType: email.emailType,
      emailLastValidatedAt: email.emailLastValidatedAt,
      suppressionChange: email.suppressionChange,
      settledAt: at,
    })
    .where(eq(requests.id, requestId))
    .returning();
  const request = only(completed);
  if (request.creditsUsed > 0) {
    await claimEntitlements(tx, request.organizationId, [request], replayMs);
  }
  return request;
}

/** Ends a request without an email. A trigger adds the release of its credits to the ledger. */
async function endWithoutEmail(
  tx: Transaction,
  requestId: string,
  status: 'not_found' | 'failed',
  reason: string,
  at: Date,
): Promise<Request> {
  const ended = await tx
    .update(requests)
    .set({ status, reason, settledAt: at })
    .where(eq(requests.id, requestId))
    .returning();
  return only(ended);
}

function settlementOf(request: Request, at: Date, settledNow: boolean): Settlement {
  const { status, reason, organizationId, cost, emailType, replayed } = request;
  return {
    // A settled request has a final status. The check requests_settled_iff_final requires it.
    status: status as FinalStatus,
    reason,
    settledNow,
    organizationId,
    cost,
    emailType,
    replayed,
    seconds: (at.getTime() - request.acceptedAt.getTime()) / 1000,
  };
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
    const at = await clock(tx);
    const overdue = await tx
      .select({ id: requests.id })
      .from(requests)
      .where(
        and(
          eq(requests.organizationId, organizationId),
          isNull(requests.settledAt),
          lt(requests.deadlineAt, at),
        ),
      )
      .limit(limit)
      .for('update', { skipLocked: true });
    const ids = overdue.map(({ id }) => id);
    return await failAll(tx, ids, 'deadline', at);
  });
  for (const one of ended) countSettled(one);
  return ended;
}

/**
 * Settles open requests of one organization as `failed`, in one statement. The caller has locked the
 * organization's balance and the requests.
 */
export async function failAll(
  tx: Transaction,
  requestIds: readonly string[],
  reason: Reason,
  at: Date,
) {
  if (requestIds.length === 0) return [];
  const ids = sql.param(requestIds);
  const settled = await tx
    .update(requests)
    .set({ status: 'failed', reason, settledAt: at })
    .where(sql`${requests.id} = any(${ids})`)
    .returning();
  await run(tx)`select close_lookups(${ids})`;
  return settled.map((request) => ({
    requestId: request.id,
    batchId: request.batchId,
    ...settlementOf(request, at, true),
  }));
}
