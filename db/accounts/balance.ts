import { run, type Transaction } from '../connection/client.ts';

/**
 * Locks the balance of an organization. Every transaction that changes credits takes this lock
 * first, so that two of them cannot deadlock.
 */
export async function balanceLock(tx: Transaction, organizationId: string) {
  return await run(tx)`
    select from credit_balances where organization_id = ${organizationId} for update`;
}
