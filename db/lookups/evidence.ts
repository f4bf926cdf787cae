import { and, asc, desc, eq, getTableColumns, inArray, isNull, or, sql } from 'drizzle-orm';
import { type Database, query } from '../client.ts';
import { Refusal } from '../errors.ts';
import type { Suppression } from '../privacy/suppressions.ts';
import {
  emailChecks,
  lookups,
  providerEndpoints,
  providers,
  requests,
  sourceSlots,
  storedEmails,
  vendorAttempts,
} from '../schema.ts';

// The evidence for the answers about an NPI. It contains email addresses. The caller decides which
// parts to show.

/**
 * The maximum number of an NPI's newest requests, and of its checks outside of lookups, that are
 * returned.
 */
const REQUESTS_AT_MOST = 20;
const CHECKS_AT_MOST = 50;

export type EvidenceRequest = typeof requests.$inferSelect;
export type EvidenceAttempt = typeof vendorAttempts.$inferSelect;
export type EvidenceCheck = typeof emailChecks.$inferSelect;
export type EvidenceSlot = typeof sourceSlots.$inferSelect;
export type Evidence = Awaited<ReturnType<typeof readEvidence>>;
/** One lookup with all its vendor attempts and checks, or one request that needed no lookup. */
export type Chapter = Evidence['chapters'][number];

/**
 * Reads the evidence for one request, or for the newest requests of an NPI.
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function readEvidence(
  db: Database,
  about: { readonly requestId: string } | { readonly npi: string },
) {
  const isReal = isNull(requests.testOutcome);
  return await query(db, async (tx) => {
    const asked = await tx
      .select()
      .from(requests)
      .where(
        'requestId' in about
          ? eq(requests.id, about.requestId)
          : and(eq(requests.npi, about.npi), isReal),
      )
      .orderBy(desc(requests.acceptedAt), desc(requests.id))
      .limit(REQUESTS_AT_MOST);
    const npi = 'npi' in about ? about.npi : asked[0]?.npi;
    if (npi === undefined) throw new Refusal('request_missing');
    const [provider = null] = await tx
      .select(PROVIDER)
      .from(providers)
      .where(eq(providers.npi, npi));
    const [suppression] = await tx.execute<{ suppressed: boolean }>(
      sql`select is_suppressed(${npi}, null) as suppressed`,
    );
    const suppressions = await tx.execute<Suppression & Record<string, unknown>>(sql`
      with addresses as (
        select lower(email) as email from stored_emails where npi = ${npi}
        union select lower(email) from requests where npi = ${npi} and email is not null)
      select kind, value, origin, reason, created_at as "createdAt" from suppressions s
       where kind = 'npi' and value = ${npi}
          or kind = 'email' and value in (select encode(sha256(convert_to(email, 'UTF8')), 'hex') from addresses)
          or kind = 'domain' and exists (
            select from addresses where '.' || split_part(email, '@', 2) like '%.' || s.value)
       order by created_at`);
    const ids = [...new Set(asked.flatMap(({ lookupId }) => lookupId ?? []))];
    const begun = await tx.select(LOOKUP).from(lookups).where(inArray(lookups.id, ids));
    const attempts = await tx
      .select()
      .from(vendorAttempts)
      .where(inArray(vendorAttempts.lookupId, ids))
      .orderBy(asc(vendorAttempts.startedAt), asc(vendorAttempts.vendor), asc(vendorAttempts.n));
    const slots = await tx
      .select()
      .from(sourceSlots)
      .where(
        inArray(
          sourceSlots.requestId,
          asked.map(({ id }) => id),
        ),
      )
      .orderBy(asc(sourceSlots.slotAt));
    const ofNoLookup = and(eq(emailChecks.npi, npi), isNull(emailChecks.lookupId));
    const checks = await tx
      .select()
      .from(emailChecks)
      .where(or(inArray(emailChecks.lookupId, ids), 'npi' in about ? ofNoLookup : undefined))
      .orderBy(asc(emailChecks.id));
    const chapters = Map.groupBy(asked.reverse(), ({ id, lookupId }) => lookupId ?? id);
    return {
      npi,
      /** Null if neither the NPPES file nor the registry has reported it. */
      provider,
      isSuppressed: suppression?.suppressed === true,
      /** The suppressions of the NPI and of its stored or answered addresses. */
      suppressions: [...suppressions],
      /** The number of endpoints that NPPES lists. */
      endpoints: await tx.$count(providerEndpoints, eq(providerEndpoints.npi, npi)),
      /** Everything the directory holds for the NPI. */
      stored: await tx
        .select(STORED)
        .from(storedEmails)
        .where(eq(storedEmails.npi, npi))
        .orderBy(asc(storedEmails.firstSeenAt), asc(storedEmails.email)),
      /** Oldest first. */
      chapters: [...chapters].map(([id, own]) => ({
        lookup: begun.find((lookup) => lookup.id === id) ?? null,
        /** Only the requests that this call asks about. */
        requests: own,
        attempts: attempts.filter(({ lookupId }) => lookupId === id),
        checks: checks.filter(({ lookupId }) => lookupId === id),
        /** The slots under rate limits that the requests wait for now. */
        slots: slots.filter(({ requestId }) => own.some((request) => request.id === requestId)),
      })),
      /**
       * The checks of stored addresses that no request waited for. Empty unless the call asks about
       * an NPI.
       */
      otherChecks: checks.filter(({ lookupId }) => lookupId === null).slice(-CHECKS_AT_MOST),
    };
  });
}

const {
  rowHash: _hash,
  phoneKey: _phone,
  addressKey: _address,
  ...PROVIDER
} = getTableColumns(providers);
const STORED = {
  ...getTableColumns(storedEmails),
  isSuppressed: sql<boolean>`is_suppressed(${storedEmails.npi}, ${storedEmails.email})`,
};
const LOOKUP = {
  ...getTableColumns(lookups),
  requestCount: sql<number>`(select count(*)::int from requests r where r.lookup_id = lookups.id)`,
};
