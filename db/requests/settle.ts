import { and, eq, inArray, isNull, lt, sql } from 'drizzle-orm';
import { clock, type Database, insertAll, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { closeLookups } from '../lookups/lookups.ts';
import { ledgerEntries, requests } from '../schema.ts';
import type { FinalStatus } from '../words.ts';
import { claimEntitlement, completed, findReplays, findStoredEmails } from './entitlements.ts';
import type { BatchStart } from './outbox.ts';
import { balanceLock, giveRoom } from './room.ts';

export interface SettleRules {
  readonly freshnessMs: number;
  readonly replayMs: number;
  /** How many lookups of one organization may be open at once. */
  readonly lookupsPerOrganization: number;
}

/** How a lookup ended: `answered` takes what the directory now holds, `failed` gives the credits back. */
export type LookupEnd = 'answered' | 'failed';

export interface Settlement {
  readonly status: FinalStatus;
  /** False where the request was final already: settling again changes nothing. */
  readonly settledNow: boolean;
  /** The batches that have room for another lookup now: their workflows are to be told. */
  readonly wake: readonly BatchStart[];
}

type Request = typeof requests.$inferSelect;

/**
 * Makes one request final, in one transaction with its charge or release. Safe to repeat, and to race: result and
 * time-out meet on the same row lock, and whichever comes second finds the request final.
 *
 * An answer that comes after the deadline settles as `failed`; what it found stays in the directory for the next
 * request (DECISIONS.md, Requests and batches).
 * @param reason why there is no email, for operators; kept only where there is none
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function settle(
  db: Database,
  requestId: string,
  end: LookupEnd,
  reason: string,
  rules: SettleRules,
): Promise<Settlement> {
  return await transaction(db, (tx) => settleIn(tx, requestId, end, reason, rules));
}

/** Settles as part of the caller's transaction, as `settle` does in one of its own. */
export async function settleIn(
  tx: Transaction,
  requestId: string,
  end: LookupEnd,
  reason: string,
  rules: SettleRules,
): Promise<Settlement> {
  // The balance first: every writer of one organization takes its locks in the same order. The time is that of the lock,
  // and a request that was written to during the wait is read anew, because it is locked too.
  const owner = tx.select({ id: requests.organizationId }).from(requests).where(eq(requests.id, requestId));
  const locked = tx.$with('locked').as(balanceLock(tx, owner));
  const [row] = await tx
    .with(locked)
    .select({
      request: requests,
      at: sql`date_trunc('milliseconds', clock_timestamp())`.mapWith(requests.acceptedAt),
    })
    .from(locked)
    .innerJoin(requests, eq(requests.organizationId, locked.id))
    .where(eq(requests.id, requestId))
    .for('update', { of: requests });
  if (!row) throw new Refusal('request_missing');
  const { request, at } = row;
  if (request.settledAt) return { status: finalStatus(request), settledNow: false, wake: [] };
  const late = at > request.deadlineAt;
  if (end === 'failed' || late) {
    return await finish(tx, request, rules, {
      ...{ status: 'failed', reason: late ? 'deadline' : reason, settledAt: at },
    });
  }
  const { organizationId, npi, wantedType, lookupId } = request;
  const search = { organizationId, npis: [npi], wantedType, at, lookupId, ...rules };
  const [replays, directory] = await Promise.all([findReplays(tx, search), findStoredEmails(tx, search)]);
  const replay = replays.get(npi);
  if (replay) return await finish(tx, request, rules, completed(replay, true, at));
  const stored = directory.get(npi);
  if (!stored) return await finish(tx, request, rules, { status: 'not_found', reason, settledAt: at });
  const { emailType } = stored;
  await claimEntitlement(tx, { organizationId, npi, emailType, requestId, at, replayMs: rules.replayMs });
  return await finish(tx, request, rules, completed(stored, false, at));
}

/**
 * Makes overdue requests of one organization final as `failed`, in one transaction with their releases: after an
 * outage there are thousands. A request that somebody is writing to is left to them, or to the next call.
 * @param which of its requests; `batchId` only those of this batch
 * @returns those it settled, `limit` at most
 */
export async function settleOverdue(
  db: Database,
  which: { readonly organizationId: string; readonly batchId?: string; readonly limit: number },
) {
  const { organizationId, batchId, limit } = which;
  return await transaction(db, async (tx) => {
    await balanceLock(tx, organizationId);
    const settledAt = await clock(tx);
    const overdue = tx
      .select({ id: requests.id })
      .from(requests)
      .where(
        and(
          eq(requests.organizationId, organizationId),
          batchId === undefined ? undefined : eq(requests.batchId, batchId),
          isNull(requests.settledAt),
          lt(requests.deadlineAt, settledAt),
        ),
      )
      .limit(limit)
      .for('update', { skipLocked: true });
    const settled = await tx
      .update(requests)
      .set({ status: 'failed', reason: 'deadline', settledAt })
      .where(inArray(requests.id, overdue))
      .returning({
        requestId: requests.id,
        batchId: requests.batchId,
        amount: requests.cost,
        lookupId: requests.lookupId,
      });
    if (settled.length === 0) return [];
    const releases = settled.map(({ requestId, amount }) => ({
      ...{ organizationId, requestId, kind: 'release' as const, amount, createdAt: settledAt },
    }));
    await tx.execute(insertAll(ledgerEntries, releases));
    await closeLookups(tx, settled, { answered: false, at: settledAt });
    return settled.map(({ requestId, batchId }) => ({ requestId, batchId }));
  });
}

async function finish(
  tx: Transaction,
  request: Request,
  { lookupsPerOrganization }: SettleRules,
  result: Partial<Request> & { readonly status: FinalStatus; readonly settledAt: Date },
): Promise<Settlement> {
  const { id: requestId, organizationId, cost: amount } = request;
  const { status, settledAt } = result;
  const kind = status === 'completed' && !result.replayed ? 'charge' : 'release';
  await Promise.all([
    tx.update(requests).set(result).where(eq(requests.id, requestId)),
    tx.insert(ledgerEntries).values({ organizationId, requestId, kind, amount, createdAt: settledAt }),
  ]);
  const wake = await giveRoom(tx, organizationId, lookupsPerOrganization);
  await closeLookups(tx, [request], { answered: status !== 'failed', at: settledAt });
  return { status, settledNow: true, wake };
}

function finalStatus(request: Request): FinalStatus {
  if (request.status === 'accepted' || request.status === 'in-progress')
    throw new Error('a request was settled and is not final');
  return request.status;
}
