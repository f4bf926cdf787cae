import { sql } from 'drizzle-orm';
import { type Database, run, span } from '../connection/client.ts';
import { specialtyOf } from '../providers/specialty.ts';
import type { EmailType, NpiRefusal } from '../words.ts';

// Reads what the free check shows about NPIs (DECISIONS.md, Requests and batches). Suppressions,
// stored emails, and lookups are not read, so the check can't reveal them.

/** The public facts about an NPI, as in the imported files of NPPES. */
export interface PublicFacts {
  /** The reason why the NPI is not looked up. */
  readonly refusal: Exclude<NpiRefusal, 'suppressed'> | null;
  /** The name of the person or the organization. */
  readonly name: string | null;
  readonly credential: string | null;
  /** The city and the state of the primary practice. */
  readonly city: string | null;
  readonly state: string | null;
  /** In words. Null for an organization, and for a rare specialty without words. */
  readonly specialty: string | null;
}

interface Row extends Omit<PublicFacts, 'specialty'> {
  readonly npi: string;
  readonly taxonomy: string | null;
}

/**
 * Reads the public facts about NPIs, by NPI. NPIs that no import contains are left out. The rows that
 * come from the NPI Registry would reveal which NPIs other customers have submitted.
 */
export async function readPublicFacts(
  db: Database,
  npis: readonly string[],
): Promise<Map<string, PublicFacts>> {
  const rows = await run<Row>(db)`
    select npi,
           public_refusal_of(npi) as refusal,
           nullif(coalesce(organization_name,
                           concat_ws(' ', first_name, middle_name, last_name, name_suffix)), '') as name,
           credential,
           practice_city as city,
           practice_state as state,
           taxonomy
      from providers
     where npi = any(${sql.param([...npis])}) and origin = 'nppes'`;
  return new Map(
    rows.map(({ npi, taxonomy, ...facts }) => [
      npi,
      { ...facts, specialty: specialtyOf(taxonomy) },
    ]),
  );
}

/**
 * Reads which types of emails an organization has paid for, by NPI. A submit that requests such a
 * type is free.
 * @param paidMs the age of a charge at most, in milliseconds
 */
export async function readPaidTypes(
  db: Database,
  organizationId: string,
  npis: readonly string[],
  paidMs: number,
): Promise<Map<string, EmailType[]>> {
  const rows = await run<{ readonly npi: string; readonly types: EmailType[] }>(db)`
    select npi, array_agg(email_type) as types
      from entitlements
     where organization_id = ${organizationId}
       and npi = any(${sql.param([...npis])})
       and charged_at >= clock_timestamp() - ${span(paidMs)}
     group by npi`;
  return new Map(rows.map(({ npi, types }) => [npi, types]));
}
