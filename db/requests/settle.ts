import { eq } from 'drizzle-orm';
import { clock, type Database, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { closeLookup } from '../lookups/lookups.ts';
import { creditBalances, ledgerEntries, requests } from '../schema.ts';
import type { FinalStatus } from '../words.ts';
import { claimEntitlement, findReplays, findStoredEmails, type KnownEmail } from './entitlements.ts';

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
  if (end === 'failed' || late) return await release(tx, request, 'failed', late ? 'deadline' : reason, at);

  const { organizationId, npi, wantedType } = request;
  const search = { organizationId, npis: [npi], wantedType, at, lookupId: request.lookupId, ...rules };
  const replay = (await findReplays(tx, search)).get(npi);
  if (replay) return await complete(tx, request, replay, true, at);
  const stored = (await findStoredEmails(tx, search)).get(npi);
  if (!stored) return await release(tx, request, 'not_found', reason, at);
  const claim = {
    organizationId,
    npi,
    emailType: stored.emailType,
    requestId,
    at,
    replayMs: rules.replayMs,
  };
  if (!(await claimEntitlement(tx, claim)))
    throw new Error('an entitlement changed hands under the lock of its organization');
  return await complete(tx, request, stored, false, at);
}

/** The balance first: every writer of one organization takes its locks in the same order. */
async function lock(tx: Transaction, requestId: string): Promise<Request> {
  const owner = tx.select({ id: requests.organizationId }).from(requests).where(eq(requests.id, requestId));
  await tx
    .select({ id: creditBalances.organizationId })
    .from(creditBalances)
    .where(eq(creditBalances.organizationId, owner))
    .for('update');
  // Read after the lock is held, in a statement of its own: a joined row would come from before the wait.
  const [request] = await tx.select().from(requests).where(eq(requests.id, requestId)).for('update');
  if (!request) throw new Refusal('request_missing');
  return request;
}

async function complete(
  tx: Transaction,
  request: Request,
  known: KnownEmail,
  replayed: boolean,
  at: Date,
): Promise<Settlement> {
  await tx
    .update(requests)
    .set({
      status: 'completed',
      replayed,
      email: known.email,
      emailType: known.emailType,
      emailLastValidatedAt: known.lastValidatedAt,
      settledAt: at,
    })
    .where(eq(requests.id, request.id));
  await post(tx, request, replayed ? 'release' : 'charge', at);
  await closeLookup(tx, request, { answered: true, at });
  return { status: 'completed', settledNow: true };
}

async function release(
  tx: Transaction,
  request: Request,
  status: 'not_found' | 'failed',
  reason: string,
  at: Date,
): Promise<Settlement> {
  await tx.update(requests).set({ status, reason, settledAt: at }).where(eq(requests.id, request.id));
  await post(tx, request, 'release', at);
  await closeLookup(tx, request, { answered: status === 'not_found', at });
  return { status, settledNow: true };
}

async function post(
  tx: Transaction,
  request: Request,
  kind: 'charge' | 'release',
  createdAt: Date,
): Promise<void> {
  const { organizationId, id: requestId, cost: amount } = request;
  await tx.insert(ledgerEntries).values({ organizationId, requestId, kind, amount, createdAt });
}

function finalStatus(request: Request): FinalStatus {
  if (request.status === 'accepted' || request.status === 'in-progress')
    throw new Error('a request was settled and is not final');
  return request.status;
}
