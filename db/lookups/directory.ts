import { sql } from 'drizzle-orm';
import { type Database, run, span } from '../client.ts';
import { isUsable } from '../requests/entitlements.ts';
import type { WantedType } from '../words.ts';
import { type ClaimedEmail, IS_TYPED_DIRECT } from './candidates.ts';

// The directory: every address a source ever named for an NPI, with the newest verdict on it.

/** Whether the directory now satisfies a wanted type. */
export async function hasStoredEmail(
  db: Database,
  search: { npi: string; wantedType: WantedType; freshnessMs: number; lookupId: string | null },
): Promise<boolean> {
  const { npi, freshnessMs } = search;
  const usable = isUsable({ ...search, at: sql`now()` }, freshnessMs);
  const rows = await run(db)`select from stored_emails where npi = ${npi} and ${usable} limit 1`;
  return rows.length > 0;
}

type Fading = Pick<ClaimedEmail, 'email' | 'vendorType' | 'source' | 'isTypedDirect'> & {
  readonly npi: string;
};

/** Valid addresses that go stale within `leadMs`, the first to do so first, of NPIs among the newest requests. */
export async function listFading(
  db: Database,
  search: { readonly freshnessMs: number; readonly leadMs: number; readonly limit: number },
) {
  const stale = sql`now() - ${span(search.freshnessMs)}`;
  return await run<Fading>(db)`
    select s.npi, s.email, s.email_type as "vendorType", s.source, ${IS_TYPED_DIRECT} as "isTypedDirect"
      from (select distinct npi from (select npi from requests where test_outcome is null order by accepted_at desc limit ${ASKED}) newest) asked
      join stored_emails s on s.npi = asked.npi
     where s.verdict = 'valid' and not s.unchecked and s.may_store
       and s.last_validated_at >= ${stale}
       and s.last_validated_at < ${stale} + ${span(search.leadMs)}
       and not is_suppressed(s.npi, s.email) and not is_inactive(s.npi)
     order by s.last_validated_at limit ${search.limit}`;
}

/** The newest requests say who is asked for; beyond them a round would cost more than it brings. */
const ASKED = 20_000;
