import { run, type Transaction } from '../client.ts';

/**
 * Locks the balance of an organization. Each writer locks the balance first, so that all writers
 * lock in the same order.
 */
export async function balanceLock(tx: Transaction, organizationId: string) {
  return await run(tx)`
    select from credit_balances where organization_id = ${organizationId} for update`;
}
