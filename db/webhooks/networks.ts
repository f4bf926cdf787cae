import { sql } from 'drizzle-orm';
import { type Database, lasts, run, span, type Transaction } from '../client.ts';

// Limits the attempts to an IP address, for hosts that have never accepted a delivery there.
// Otherwise, a customer could flood a third party through us, with host names that point at its
// addresses.

/**
 * The maximum number of attempts per hour to one IP address. Only attempts for hosts that have
 * never responded 2xx from this address are counted.
 */
const ADDRESS_ATTEMPTS_PER_HOUR = 20;
const HOUR_MS = 3_600_000;
const SPEND_MS = HOUR_MS / ADDRESS_ATTEMPTS_PER_HOUR;

/**
 * Counts one attempt for each unproven address that the attempt may connect to. An address has 20
 * attempts, and gets one back every three minutes. A 2xx response proves a host only for one
 * organization, one name and port, and one address. So it does not lift the limit for other names
 * at the same address. It does not lift the limit for other addresses of the same name either,
 * because the owner of the name can change its DNS records at any time.
 * @param addresses the resolved and checked addresses of the host
 * @returns the addresses that may be connected to
 */
export async function admitToAddresses(
  db: Database,
  addresses: readonly string[],
): Promise<string[]> {
  const rows = await run<{ address: string }>(db)`
    with asked as (
      select address, webhook_network(address::inet) as network
        from unnest(${sql.param(addresses)}::text[]) address
    ), admitted as (
      -- Inserts in a fixed order, so that two attempts cannot deadlock.
      insert into webhook_networks as n (network, spent_until)
      select distinct network, clock_timestamp() + ${span(SPEND_MS)}
        from asked
       order by network
      on conflict (network) do update
         -- More than an hour can't be spent. Then the clock was set back, and one attempt is left.
         set spent_until = greatest(
               least(n.spent_until, clock_timestamp() + ${span(HOUR_MS - SPEND_MS)}),
               clock_timestamp()) + ${span(SPEND_MS)}
       where n.spent_until <= clock_timestamp() + ${span(HOUR_MS - SPEND_MS)}
          or not ${lasts(sql`n.spent_until`, HOUR_MS)}
      returning network
    )
    select address from asked join admitted using (network)`;
  return rows.map(({ address }) => address);
}

/** Reverts the count of `admitToAddresses` for these addresses, because nothing was sent. */
export async function giveBackAddresses(
  tx: Transaction,
  addresses: readonly string[],
): Promise<void> {
  await run(tx)`
    update webhook_networks set spent_until = spent_until - ${span(SPEND_MS)}
     where network in (
       select webhook_network(address::inet)
         from unnest(${sql.param(addresses)}::text[]) address)`;
}
