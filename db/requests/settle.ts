import { and, eq, inArray, isNull, lt, type SQLWrapper } from 'drizzle-orm';
import { clock, type Database, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { closeLookups } from '../lookups/lookups.ts';
import { creditBalances, ledgerEntries, requests } from '../schema.ts';
import type { FinalStatus } from '../words.ts';
import { claimEntitlement, completed, findReplays, findStoredEmails } from './entitlements.ts';

export interface SettleRules {
  readonly freshnessMs: number;
  readonly replayMs: number;
}

/** How a lookup ended: `answered` takes what the directory now holds, `failed` gives the credits back. */
export type LookupEnd = 'answered' | 'failed';

export interface Settlement {
  readonly status: FinalStatus;
  /** False where the request was final already: settling again changes nothing. */
  readonly settledNow: boolean;
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
  const request = await lock(tx, requestId);
  if (request.settledAt) return { status: finalStatus(request), settledNow: false };
  const at = await clock(tx);
  const late = at > request.deadlineAt;
  if (end === 'failed' || late) {
    return await finish(tx, request, { status: 'failed', reason: late ? 'deadline' : reason, settledAt: at });
  }
  const { organizationId, npi, wantedType, lookupId } = request;
  const search = { organizationId, npis: [npi], wantedType, at, lookupId, ...rules };
  const replay = (await findReplays(tx, search)).get(npi);
  if (replay) return await finish(tx, request, completed(replay, true, at));
  const stored = (await findStoredEmails(tx, search)).get(npi);
  if (!stored) return await finish(tx, request, { status: 'not_found', reason, settledAt: at });
  const { emailType } = stored;
  await claimEntitlement(tx, { organizationId, npi, emailType, requestId, at, replayMs: rules.replayMs });
  return await finish(tx, request, completed(stored, false, at));
}

export interface OverdueRequest {
  readonly requestId: string;
  readonly batchId: string;
}

/**
 * Makes overdue requests of one organization final as `failed`, in one transaction with their releases: after an
 * outage there are thousands. A request that somebody is writing to is left to them, or to the next call.
 * @param which of its requests; `batchId` only those of this batch
 * @returns those it settled, `limit` at most
 * @throws {DatabaseError}
 */
export async function settleOverdue(
  db: Database,
  which: { readonly organizationId: string; readonly batchId?: string; readonly limit: number },
): Promise<OverdueRequest[]> {
  const { organizationId, batchId, limit } = which;
  return await transaction(db, async (tx) => {
    await lockBalance(tx, organizationId);
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
    await tx.insert(ledgerEntries).values(
      settled.map(({ requestId, amount }) => ({
        ...{ organizationId, requestId, kind: 'release' as const, amount, createdAt: settledAt },
      })),
    );
    await closeLookups(tx, settled, { answered: false, at: settledAt });
    return settled.map(({ requestId, batchId }) => ({ requestId, batchId }));
  });
}

/** The balance first: every writer of one organization takes its locks in the same order. */
async function lock(tx: Transaction, requestId: string): Promise<Request> {
  await lockBalance(
    tx,
    tx.select({ id: requests.organizationId }).from(requests).where(eq(requests.id, requestId)),
  );
  // Read after the lock is held, in a statement of its own: a joined row would come from before the wait.
  const [request] = await tx.select().from(requests).where(eq(requests.id, requestId)).for('update');
  if (!request) throw new Refusal('request_missing');
  return request;
}

async function lockBalance(tx: Transaction, owner: string | SQLWrapper): Promise<void> {
  await tx
    .select({ id: creditBalances.organizationId })
    .from(creditBalances)
    .where(eq(creditBalances.organizationId, owner))
    .for('update');
}

async function finish(
  tx: Transaction,
  request: Request,
  result: Partial<Request> & { readonly status: FinalStatus; readonly settledAt: Date },
): Promise<Settlement> {
  const { id: requestId, organizationId, cost: amount } = request;
  const { status, settledAt } = result;
  const kind = status === 'completed' && !result.replayed ? 'charge' : 'release';
  await tx.update(requests).set(result).where(eq(requests.id, requestId));
  await tx.insert(ledgerEntries).values({ organizationId, requestId, kind, amount, createdAt: settledAt });
  await closeLookups(tx, [request], { answered: status !== 'failed', at: settledAt });
  return { status, settledNow: true };
}

function finalStatus(request: Request): FinalStatus {
  if (request.status === 'accepted' || request.status === 'in-progress')
    throw new Error('a request was settled and is not final');
  return request.status;
}
