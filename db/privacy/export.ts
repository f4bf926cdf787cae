import { type SQL, sql } from 'drizzle-orm';
import { type Database, query } from '../client.ts';
import type { DataSubject } from './privacy.ts';
import { hashAddress } from './suppressions.ts';

// What is held about a person, for them to have. Organizations appear by their ids: whom they are is not the person's
// data. `custom_data` is the customer's own, and left out.

/** What we compute for ourselves from other columns. */
const DERIVED = ['row_hash', 'phone_key', 'address_key', 'updated_at', 'unchecked', 'facts'];

/**
 * Everything held about a provider, or under an address. For an NPI: its NPPES rows and the lookups and requests for
 * it; of an address: what names it.
 * @returns rows with the columns' own names
 */
export async function exportSubject(db: Database, subject: DataSubject) {
  const ofNpi = 'npi' in subject ? sql`npi = ${subject.npi}` : sql`false`;
  const theirs = 'npi' in subject ? ofNpi : sql`email = ${subject.email}`;
  const [endpoint, suppressed] =
    'npi' in subject
      ? [ofNpi, sql`kind = 'npi' and value = ${subject.npi}`]
      : [
          sql`endpoint like '%@%' and endpoint_address(endpoint) = ${subject.email}`,
          sql`kind = 'email' and value = ${hashAddress(subject.email)}`,
        ];
  return await query(db, async (tx) => {
    const rows = async (statement: SQL) => {
      const found = await tx.execute<{ row: Record<string, unknown> }>(
        sql`select to_jsonb(t) - ${sql.param(DERIVED)}::text[] as row from (${statement}) t`,
      );
      return [...found].map(({ row }) => row);
    };
    return {
      providers: await rows(sql`select * from providers where ${ofNpi}`),
      locations: await rows(sql`select * from provider_locations where ${ofNpi}`),
      clinician_practices: await rows(sql`select * from clinician_practices where ${ofNpi}`),
      endpoints: await rows(sql`select * from provider_endpoints where ${endpoint} order by npi, endpoint`),
      stored_emails: await rows(sql`select * from stored_emails where ${theirs} order by first_seen_at`),
      email_checks: await rows(sql`select * from email_checks where ${theirs} order by id`),
      lookups: await rows(sql`select * from lookups where ${ofNpi} order by opened_at`),
      requests: await rows(sql`
        select id, batch_id, organization_id, npi, status, email, email_type, email_last_validated_at, accepted_at,
               settled_at, erased_at
          from requests where ${theirs} and test_outcome is null order by accepted_at, id`),
      // Those that reported one of these answers, alone or with the rest of a batch.
      deliveries: await rows(sql`
        select id, batch_id, request_id, state, attempts, created_at, decided_at from webhook_deliveries
         where batch_id in (select batch_id from requests where ${theirs} and test_outcome is null)
           and (request_id is null or request_id in (select id from requests where ${theirs}))
         order by created_at, id`),
      suppressions: await rows(sql`select * from suppressions where ${suppressed}`),
    };
  });
}
