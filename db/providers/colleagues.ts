import { sql } from 'drizzle-orm';
import { run, type Transaction } from '../connection/client.ts';

/** Another clinician with a provider's telephone number, address, or group. */
export interface Colleague {
  /** The shared `phone_key` or `address_key`, or the PAC ID of the shared group. */
  readonly key: string;
  /** As in NPPES. */
  readonly lastName: string;
  /**
   * The domain of the colleague's newest valid professional address in the directory, in lowercase.
   * Null if the directory has no such address.
   */
  readonly domain: string | null;
}

/**
 * The maximum number of colleagues that are read for one key. A hospital's address has thousands,
 * and a sample is enough to see the domain that they share.
 */
const MAX_PER_KEY = 100;

/**
 * Reads the active clinicians who share a telephone number, an address, or a group with a provider.
 * @param places the provider's phone key and address key
 * @param pacIds the PAC IDs of the provider's groups
 */
export async function readColleagues(
  tx: Pick<Transaction, 'execute'>,
  npi: string,
  places: readonly string[],
  pacIds: readonly string[],
): Promise<Colleague[]> {
  if (places.length === 0 && pacIds.length === 0) return [];
  return await run<Colleague>(tx)`
    with near as (
      select key, found.npi
        from unnest(${sql.param([...places])}::text[]) place(key)
       cross join lateral (
         (select p.npi from providers p
           where p.entity_type = 1 and p.phone_key = key limit ${MAX_PER_KEY})
         union
         (select p.npi from providers p
           where p.entity_type = 1 and p.address_key = key limit ${MAX_PER_KEY})) found
      union
      select key, found.npi
        from unnest(${sql.param([...pacIds])}::text[]) pac(key)
       cross join lateral (
         select c.npi from clinician_practices c
          where c.pac_id = key and c.pac_id <> '' limit ${MAX_PER_KEY}) found)
    select near.key,
           p.last_name as "lastName",
           (select split_part(s.email, '@', 2)
              from (
                -- The offset keeps the filters out of this scan. Without statistics, PostgreSQL
                -- would also read an index of all valid addresses.
                select * from stored_emails where npi = p.npi offset 0) s
             where s.verdict = 'valid'
               and s.email_type = 'professional'
               and not is_suppressed(s.npi, s.email)
             order by s.last_validated_at desc
             limit 1) as domain
      from near
      join providers p on p.npi = near.npi
     where p.npi <> ${npi} and p.active and p.last_name is not null
     order by near.key, p.npi`;
}
