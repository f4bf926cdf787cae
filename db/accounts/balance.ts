import { run, type Transaction } from '../client.ts';

/**
 * Locks the balance of an organization. Every writer of an organization takes it first, so all take
 * their locks in the same order.
 */
export async function balanceLock(tx: Transaction, organizationId: string) {
  return await run(
    tx,
  )`select from credit_balances where organization_id = ${organizationId} for update`;
}
