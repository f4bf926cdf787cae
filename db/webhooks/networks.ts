import { type SQL, sql } from 'drizzle-orm';
import {
  type Database,
  lasts,
  run,
  span,
  type Transaction,
} from '../connection/client.ts';

// Limits the attempts to an IP address, for hosts that have never accepted a delivery there.
// Otherwise, a customer could flood a third party through us, with host names that point at its
// addresses.
//
// Each customer has its own share, so that one customer cannot use up the first contact of another.
// The limit of all customers together protects the third party from many customers. It has room for
// five full shares.

const HOUR_MS = 3_600_000;
/** The maximum number of attempts per hour of one customer to one IP address. */
const CUSTOMER_ATTEMPTS_PER_HOUR = 20;
const CUSTOMER_MS = HOUR_MS / CUSTOMER_ATTEMPTS_PER_HOUR;
/** The maximum number of attempts per hour of all customers to one IP address. */
const ATTEMPTS_PER_HOUR = 100;
const ALL_MS = HOUR_MS / ATTEMPTS_PER_HOUR;

/**
 * Counts one attempt for each unproven address that the attempt may connect to. A customer has 20
 * attempts per address, and gets one back every three minutes. All customers together have 100, and
 * get one back every 36 seconds. A 2xx response proves a host only for one organization, one name
 * and port, and one address. So it does not lift the limit for other names at the same address. It
 * does not lift the limit for other addresses of the same name either, because the owner of the name
 * can change its DNS records at any time.
 * @param addresses the resolved and checked addresses of the host
 * @returns the addresses that may be connected to
 */
export async function admitToAddresses(
  db: Database,
  organizationId: string,
  addresses: readonly string[],
): Promise<string[]> {
  // Counts for the customer first. An attempt that is over the customer's limit must not count for
  // all customers. An attempt that is only over the limit of all uses up one of the customer's.
  // Rows are locked in a fixed order, so that two attempts cannot deadlock: those of the customer,
  // then those of all customers. More than an hour can't be spent. If more is stored, the clock was
  // set back, and one attempt is left.
  const rows = await run<{ address: string }>(db)`
    with asked as (
      select address, webhook_network(address::inet) as network
        from unnest(${sql.param(addresses)}::text[]) address
    ), customer as (
      select coalesce(sandbox_of, id) as id from organizations where id = ${organizationId}
    ), own as (
      ${countFor(sql`select distinct network, customer.id from asked, customer`, CUSTOMER_MS)}
    ), admitted as (
      ${countFor(sql`select network, '' from own`, ALL_MS)}
    )
    select address from asked join admitted using (network)`;
  return rows.map(({ address }) => address);
}

/**
 * Counts an attempt for each network that has one left, and returns those networks.
 * @param rows selects the networks, each with the customer or an empty text
 * @param attemptMs the time after which one attempt is given back
 */
function countFor(rows: SQL, attemptMs: number): SQL {
  const mostSpent = sql`clock_timestamp() + ${span(HOUR_MS - attemptMs)}`;
  return sql`
    insert into webhook_networks as n (network, customer_id, spent_until)
    select network, customer_id, clock_timestamp() + ${span(attemptMs)}
      from (${rows}) counted (network, customer_id)
     order by network
    on conflict (network, customer_id) do update
       set spent_until = greatest(least(n.spent_until, ${mostSpent}), clock_timestamp())
                         + ${span(attemptMs)}
     where n.spent_until <= ${mostSpent} or not ${lasts(sql`n.spent_until`, HOUR_MS)}
    returning network`;
}

/** Reverts the count of `admitToAddresses` for these addresses, because nothing was sent. */
export async function giveBackAddresses(
  tx: Transaction,
  organizationId: string,
  addresses: readonly string[],
): Promise<void> {
  // Locks the rows in the same order as `admitToAddresses`.
  await run(tx)`
    update webhook_networks n
       set spent_until = n.spent_until
           - case when n.customer_id = '' then ${span(ALL_MS)} else ${span(CUSTOMER_MS)} end
      from (
        select network, customer_id
          from webhook_networks
         where network in (
                 select webhook_network(address::inet)
                   from unnest(${sql.param(addresses)}::text[]) address)
           and customer_id in (
                 '', (select coalesce(sandbox_of, id) from organizations where id = ${organizationId}))
         order by customer_id desc, network
           for update
      ) counted
     where (n.network, n.customer_id) = (counted.network, counted.customer_id)`;
}
