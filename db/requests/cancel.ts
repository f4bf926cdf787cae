import { and, eq, isNull, lte, type SQL, sql } from 'drizzle-orm';
import { balanceLock } from '../accounts/balance.ts';
import { clock, type Database, only, query, transaction } from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { batches, requests } from '../schema.ts';
import { failAll } from './settle.ts';

// Cancels open requests for an operator. A canceled request is settled as `failed`, so its credits
// are released and its webhook is due. Temporal is not called: at its next step, a lookup reads
// that its request is final, and ends. A result that arrives later charges nothing.

/** Selects open requests: those of a batch, or all of an organization. */
export interface OpenRequests {
  readonly organizationId: string;
  /** Null for all batches of the organization. */
  readonly batchId: string | null;
}

/**
 * The number of requests that one transaction cancels. While it runs, other transactions cannot
 * change the balance of the same organization.
 */
const PAGE = 500;

/**
 * Selects the open requests of one batch.
 * @throws {Refusal} `batch_missing` for an unknown id
 */
export async function openOfBatch(db: Database, batchId: string): Promise<OpenRequests> {
  const [found] = await query(db, (tx) =>
    tx
      .select({ organizationId: batches.organizationId })
      .from(batches)
      .where(eq(batches.id, batchId)),
  );
  if (!found) throw new Refusal('batch_missing');
  return { ...found, batchId };
}

/** Counts the open requests, and the credits that are held for them. */
export async function countOpen(db: Database, which: OpenRequests) {
  const counted = await query(db, (tx) =>
    tx
      .select({
        openBatches: sql<number>`count(distinct batch_id)::int`,
        openRequests: sql<number>`count(*)::int`,
        heldCredits: sql<number>`coalesce(sum(cost), 0)::int`,
      })
      .from(requests)
      .where(isOpen(which)),
  );
  return only(counted);
}

/**
 * Cancels open requests, at most 500 in one transaction with its entry in the audit log. Safe to
 * repeat after an interruption.
 * @returns the number of canceled requests
 */
export async function cancelOpen(
  db: Database,
  by: ChangedBy,
  which: OpenRequests,
): Promise<number> {
  // Requests that are sent from now on stay open. Otherwise the loop might never end.
  const until = await query(db, clock);
  const sent = and(isOpen(which), lte(requests.acceptedAt, until));
  let total = 0;
  for (;;) {
    const canceled = await cancelPage(db, by, which, sent);
    if (canceled === 0) return total;
    total += canceled;
  }
}

async function cancelPage(
  db: Database,
  by: ChangedBy,
  { organizationId, batchId }: OpenRequests,
  open: SQL | undefined,
): Promise<number> {
  return await transaction(db, async (tx) => {
    await balanceLock(tx, organizationId);
    // Locks in the order of `joinLookup`, which may hold some of these rows for a moment.
    const page = await tx
      .select({ id: requests.id })
      .from(requests)
      .where(open)
      .orderBy(requests.id)
      .limit(PAGE)
      .for('update');
    if (page.length === 0) return 0;
    const ids = page.map(({ id }) => id);
    const canceled = await failAll(tx, ids, 'cancelled', await clock(tx));
    const credits = canceled.reduce((sum, { cost }) => sum + cost, 0);
    await recordAudit(tx, by, {
      action: 'batch.cancel',
      organizationId,
      subject: batchId ?? organizationId,
      details: { requests: canceled.length, credits },
    });
    return canceled.length;
  });
}

function isOpen({ organizationId, batchId }: OpenRequests): SQL | undefined {
  return and(
    eq(requests.organizationId, organizationId),
    batchId === null ? undefined : eq(requests.batchId, batchId),
    isNull(requests.settledAt),
  );
}
