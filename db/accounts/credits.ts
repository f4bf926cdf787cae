import { and, eq, lte, sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import {
  cut,
  type Database,
  only,
  type Page,
  query,
  run,
  type Transaction,
  transaction,
} from '../client.ts';
import { DatabaseError, Refusal } from '../errors.ts';
import { ledgerEntries } from '../schema.ts';
import type { RequestedType } from '../words.ts';
import { balanceLock } from './balance.ts';
import type { Balance } from './organizations.ts';

/**
 * The price of an email in credits, by requested type (api/docs/lifecycle.md, Credits). A submit
 * stores the price in each request's row, and later steps use that price. So a price change here
 * does not affect earlier requests.
 */
export const PRICES: Readonly<Record<RequestedType, number>> = {
  any: 1,
  professional: 1,
  personal: 3,
};

/**
 * Reads the balance of an organization.
 * @throws {Refusal} `organization_missing` for an unknown id
 */
export async function balanceOf(
  by: Database | Transaction,
  organizationId: string,
): Promise<Balance> {
  const [balance] = await run<Balance>(by)`
    select total, used, held, available
      from credit_balances
     where organization_id = ${organizationId}`;
  if (!balance) throw new Refusal('organization_missing');
  return balance;
}

/**
 * Adds credits that an organization has bought.
 * @param amount whole credits, at least 1
 * @param reference the invoice or order, 1 to 200 characters; a second grant with the same
 * reference is rejected
 * @returns the new balance
 * @throws {Refusal} `organization_missing`; `reference_used`, with the earlier grant that has the
 * same reference; {DatabaseError} 23514 for an amount below 1
 */
export async function grantCredits(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  amount: number,
  reference: string | null = null,
): Promise<Balance> {
  try {
    return await fund(db, by, { kind: 'grant', organizationId, amount, reference });
  } catch (error) {
    if (!isViolation(error, 'ledger_entries_reference_once')) throw error;
    const granted = await query(db, (tx) =>
      tx
        .select({ amount: ledgerEntries.amount, at: ledgerEntries.createdAt })
        .from(ledgerEntries)
        .where(
          and(
            eq(ledgerEntries.organizationId, organizationId),
            sql`reference = ${reference}`,
          ),
        ),
    );
    throw new Refusal('reference_used', null, only(granted));
  }
}

/**
 * Corrects a balance. Credits that are held for running requests cannot be removed.
 * @param amount whole credits, negative to remove credits, never 0
 * @returns the new balance
 * @throws {Refusal} `organization_missing`; `credits_below_zero` if the organization has fewer
 * available credits than would be removed; {DatabaseError} 23514 if `amount` is 0
 */
export async function adjustCredits(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  amount: number,
): Promise<Balance> {
  try {
    return await fund(db, by, {
      kind: 'adjustment',
      organizationId,
      amount,
      reference: null,
    });
  } catch (error) {
    if (!isViolation(error, 'credit_balances_available')) throw error;
    throw new Refusal('credits_below_zero');
  }
}

function isViolation(error: unknown, constraint: string): boolean {
  return error instanceof DatabaseError && error.constraint === constraint;
}

/**
 * Identifies the last entry on a page of the ledger, by values that the organization may know. The
 * organization may not know the entry's number, because it would show how many entries all
 * organizations have together.
 */
export type LedgerPlace = {
  /**
   * The credits that were available before the entry. This number never changes, because entries
   * are only added at the end.
   */
  readonly available: number;
} & (
  | { readonly side: 'hold' | 'settlement'; readonly requestId: string }
  /**
   * A grant or an adjustment has no request. `ordinal` is its number among the organization's
   * grants and adjustments, from 1.
   */
  | { readonly side: 'funding'; readonly ordinal: number }
);

/** `amount` is negative only for an adjustment that removes credits. */
interface LedgerRow
  extends Pick<
    typeof ledgerEntries.$inferSelect,
    'id' | 'createdAt' | 'kind' | 'amount' | 'requestId' | 'side'
  > {
  /** The credits available after this entry. */
  readonly availableAfter: number;
  /** How many credits the entry added to the available credits. Negative if it reduced them. */
  readonly added: number;
}

/**
 * Lists an organization's ledger, the newest entries first.
 * @param page.after the last entry of the previous page; an unknown entry gives an empty page
 * @returns `next`: the `after` of the next page, or null if this is the last page
 */
export async function listLedger(
  db: Database,
  organizationId: string,
  { after, limit }: Page<LedgerPlace>,
) {
  let beforeId: number | null = null;
  if (after !== null) {
    beforeId = await findEntry(db, organizationId, after);
    if (beforeId === null) return { entries: [], next: null };
  }
  // One statement reads the balance and the entries, so that both are from the same moment. The
  // first page starts with the current balance, and later pages with the balance before the entry
  // `after`.
  const rows = await run<LedgerRow>(db)`
    select id, created_at as "createdAt", kind, amount,
           (coalesce(${after?.available ?? null}::bigint, b.available)
             - coalesce(sum(l.available) over (
                 order by id desc rows between unbounded preceding and 1 preceding), 0))::bigint
             as "availableAfter",
           request_id as "requestId", l.available as added, side
      from ledger_entries l
      join credit_balances b using (organization_id)
     where organization_id = ${organizationId}
       and id < coalesce(${beforeId}::bigint, ${Number.MAX_SAFE_INTEGER}::bigint)
     order by id desc
     limit ${limit + 1}`;
  const { items, last } = cut(rows, limit);
  const entries = items.map(({ added: _added, side: _side, ...entry }) => entry);
  if (last === null) return { entries, next: null };
  return { entries, next: await placeOf(db, organizationId, last) };
}

/** Returns the number of the entry that a place identifies, or null for an unknown entry. */
async function findEntry(
  db: Database,
  organizationId: string,
  place: LedgerPlace,
): Promise<number | null> {
  const { id, requestId, side } = ledgerEntries;
  const isOwn = eq(ledgerEntries.organizationId, organizationId);
  const [found] = await query(db, (tx) => {
    const entries = tx.select({ id }).from(ledgerEntries);
    if (place.side === 'funding') {
      return entries
        .where(and(isOwn, eq(side, 'funding')))
        .orderBy(id)
        .offset(place.ordinal - 1)
        .limit(1);
    }
    return entries.where(
      and(isOwn, eq(requestId, place.requestId), eq(side, place.side)),
    );
  });
  return found?.id ?? null;
}

async function placeOf(
  db: Database,
  organizationId: string,
  { id, side, requestId, availableAfter, added }: LedgerRow,
): Promise<LedgerPlace> {
  const available = availableAfter - added;
  if (side !== 'funding') return { side, requestId: requestId ?? '', available };
  const ordinal = await query(db, (tx) =>
    tx.$count(
      ledgerEntries,
      and(
        eq(ledgerEntries.organizationId, organizationId),
        eq(ledgerEntries.side, 'funding'),
        lte(ledgerEntries.id, id),
      ),
    ),
  );
  return { side, ordinal, available };
}

interface Funding {
  readonly kind: 'grant' | 'adjustment';
  readonly organizationId: string;
  readonly amount: number;
  readonly reference: string | null;
}

const FUNDING_ACTIONS = { grant: 'credits.grant', adjustment: 'credits.adjust' } as const;

async function fund(db: Database, by: ChangedBy, funding: Funding): Promise<Balance> {
  const { kind, organizationId, amount, reference } = funding;
  return await transaction(db, async (tx) => {
    // All writers of the ledger lock the balance first, so that they cannot deadlock.
    const [locked] = await balanceLock(tx, organizationId);
    if (!locked) throw new Refusal('organization_missing');
    await tx.insert(ledgerEntries).values({ organizationId, kind, amount, reference });
    const after = await balanceOf(tx, organizationId);
    const details: Record<string, string | number> = {
      amount,
      available: after.available,
    };
    if (reference !== null) details.reference = reference;
    await recordAudit(tx, by, {
      action: FUNDING_ACTIONS[kind],
      organizationId,
      subject: organizationId,
      details,
    });
    return after;
  });
}
