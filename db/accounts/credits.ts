import { and, eq, sql } from 'drizzle-orm';
import {
  type Database,
  only,
  query,
  run,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { Refusal, violates } from '../connection/errors.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { ledgerEntries } from '../schema.ts';
import type { RequestedType } from '../words.ts';
import { balanceLock } from './balance.ts';
import type { Balance } from './organizations.ts';
import prices from './prices.json' with { type: 'json' };

/**
 * The price of an email in credits, by requested type (api/docs/lifecycle.md, Credits). A submit
 * stores the price in each request's row, and later steps use that price. So a price change does
 * not affect earlier requests. Both clients have a link to prices.json, which their packages
 * contain as a copy.
 */
export const PRICES: Readonly<Record<RequestedType, number>> = prices;

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
  reference: string,
): Promise<Balance> {
  try {
    return await fund(db, by, { kind: 'grant', organizationId, amount, reference });
  } catch (error) {
    if (!violates(error, 'ledger_entries_reference_once')) throw error;
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
    if (!violates(error, 'credit_balances_available')) throw error;
    throw new Refusal('credits_below_zero');
  }
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
