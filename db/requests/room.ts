import { type SQL, sql } from 'drizzle-orm';
import { type Database, only, run, type Transaction, transaction } from '../client.ts';
import { type BatchStart, START } from './outbox.ts';

// Room for lookups: an organization may have so many open at once, and the rest of its requests wait in their rows.
// Room is counted from what is open, so that nobody's death can keep any. Who counts holds the organization's balance.

/** Locks a balance. Taken first by every writer of an organization, so that all take their locks in the same order. */
export async function balanceLock(tx: Transaction, owner: string) {
  return await run(tx)`select from credit_balances where organization_id = ${owner} for update`;
}

/** For how many new requests an organization has room: for none while others of its own wait. */
export async function roomLeft(tx: Transaction, organizationId: string, atMost: number): Promise<number> {
  const counted = await run<{ n: number }>(tx)`
    select count(*) as n from (
      select from requests where organization_id = ${organizationId} and settled_at is null limit ${atMost}) open`;
  return atMost - only(counted).n;
}

/**
 * Gives the room that there is to requests that wait (give_room of the migrations), and puts their batches into the
 * outbox.
 * @returns these batches
 */
export async function giveRoom(
  tx: Transaction,
  organizationId: string | SQL,
  atMost: number,
): Promise<BatchStart[]> {
  const given = await run<{ batchId: string }>(tx)`
    select batch as "batchId" from give_room(${organizationId}, ${atMost}) batch`;
  if (given.length === 0) return [];
  // Later than any wake before it, so that who has seen to that one does not take this one for seen to.
  return await run<BatchStart>(tx)`
    update batches set wake_at = greatest(clock_timestamp(), wake_at + interval '1 millisecond')
     where id = any(${sql.param(given.map(({ batchId }) => batchId))}) returning ${START}`;
}

/** Organizations with a request that waits for room. */
export async function listWaitingOwners(db: Database): Promise<string[]> {
  const owners = await run<{ id: string }>(db)`
    select distinct organization_id as id from requests where settled_at is null and not has_room`;
  return owners.map(({ id }) => id);
}

/**
 * Gives room by itself. Who settles a request gives its room on at once: this is for what was settled in another way, and
 * for more room by a changed setting.
 */
export async function giveRoomLeft(db: Database, organizationId: string, atMost: number): Promise<void> {
  await transaction(db, async (tx) => {
    await balanceLock(tx, organizationId);
    await giveRoom(tx, organizationId, atMost);
  });
}
