import type { Sql } from 'postgres';

/** Selects the n-th request (from 0) of a kind, far from the other corrupted requests. */
const request = (kind: string, n: number) =>
  `(select id from requests where ${kind} order by id offset ${n * 37} limit 1)`;
const REFUNDED = "status in ('not_found', 'failed')";

/** Statements that plant one corruption each, by the only check that has to find it. */
const PLANTS: Readonly<Record<string, readonly string[]>> = {
  hold_without_request: [
    `insert into ledger_entries (organization_id, request_id, kind, amount)
     select min(id), 'req_07zzzzzzzzzzzzzzzzzzzzzzzz', unnest(array['hold', 'release']), 1 from organizations`,
  ],
  request_without_hold: [
    `delete from ledger_entries where request_id = ${request(REFUNDED, 1)}`,
  ],
  hold_not_settled: [
    `delete from ledger_entries where kind = 'release' and request_id = ${request(REFUNDED, 2)}`,
  ],
  hold_amount: [
    `update ledger_entries set amount = amount + 1 where request_id = ${request(REFUNDED, 3)}`,
  ],
  charge_without_result: [
    `update ledger_entries l set kind = 'charge', created_at = r.settled_at from requests r
      where r.id = l.request_id and l.kind = 'release' and l.request_id = ${request(REFUNDED, 4)}`,
  ],
  result_without_charge: [
    `delete from ledger_entries where kind = 'charge' and request_id = ${request('credits_used > 0', 5)}`,
  ],
  release_without_reason: [
    `insert into ledger_entries (organization_id, request_id, kind, amount)
     select organization_id, id, 'release', cost from requests where id = ${request('settled_at is null', 6)}`,
  ],
  request_overdue: [
    `update requests set deadline_at = now() - interval '2 minutes' where id = ${request('settled_at is null', 7)}`,
  ],
  replay_without_charge: [
    `update requests set npi = '9999999999' where id = ${request('replayed', 8)}`,
  ],
  entitlement_missing: [
    `delete from entitlements where request_id = (
       select request_id from entitlements order by charged_at desc, request_id limit 1)`,
  ],
  batch_completed_count: [
    `update batches set completed_count = 0
      where id = (select id from batches where total = 1 and webhook_mode is null order by id limit 1)`,
  ],
  delivered_without_2xx: [
    `update webhook_attempts set status_code = 302
      where delivery_id = (select id from webhook_deliveries where state = 'delivered' order by id limit 1)`,
  ],
  balance_differs: [
    `update credit_balances b set total = e.total, available = e.available, held = e.held, used = e.used
       from (select organization_id, -sum(granted) as total, sum(available) as available, sum(held) as held,
                    sum(used) as used from ledger_entries group by organization_id) e
      where e.organization_id = b.organization_id`,
    `update credit_balances set total = total + 1, available = available + 1
      where organization_id = (select min(id) from organizations)`,
  ],
};

/**
 * Corrupts the data of `fillDatabase`, with triggers off.
 * @returns the checks that have one finding each afterwards
 */
export async function plantCorruptions(sql: Sql): Promise<string[]> {
  await sql.begin(async (tx) => {
    await tx`set local session_replication_role = replica`;
    for (const statement of Object.values(PLANTS).flat()) await tx.unsafe(statement);
  });
  return Object.keys(PLANTS);
}
