import {
  and,
  asc,
  desc,
  eq,
  getTableColumns,
  inArray,
  isNull,
  or,
  type SQL,
  sql,
} from 'drizzle-orm';
import type { PostgresJsDatabase } from 'drizzle-orm/postgres-js';
import { type Database, query } from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import type { Suppression } from '../privacy/suppressions.ts';
import {
  candidates,
  emailChecks,
  lookups,
  providerEndpoints,
  providers,
  requests,
  sourcePrices,
  sourceSlots,
  storedEmails,
  vendorAttempts,
} from '../schema.ts';

// Reads why requests about an NPI got their results: the lookups, vendor calls, checks, waiting
// candidates, and stored addresses. The result contains email addresses. The caller decides which parts to show.

/**
 * The maximum number of requests that are returned for an NPI. If there are more, the newest are
 * returned.
 */
const MAX_REQUESTS = 20;
/** The maximum number of checks without a lookup that are returned. */
const MAX_CHECKS = 50;

export interface EvidenceRequest extends Readonly<typeof requests.$inferSelect> {
  /**
   * True if the ledger has a charge for the request. Without a charge for a completed
   * request, doctor reports it.
   */
  readonly isCharged: boolean;
}
export interface EvidenceAttempt extends Readonly<typeof vendorAttempts.$inferSelect> {
  /** The cost of the credits. Null if the vendor's price is not configured. */
  readonly dollars: number | null;
}
export type EvidenceCheck = typeof emailChecks.$inferSelect;
export type EvidenceSlot = typeof sourceSlots.$inferSelect;
export type Evidence = Awaited<ReturnType<typeof readEvidence>>;
/** A lookup with its vendor attempts, checks, and candidates, or a request that needed no lookup. */
export type Chapter = Evidence['chapters'][number];

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
const ATTEMPT = {
  ...getTableColumns(vendorAttempts),
  dollars: sql<
    number | null
  >`(${vendorAttempts.credits} * ${sourcePrices.dollars})::float8`,
};
const LOOKUP = {
  ...getTableColumns(lookups),
  requestCount: sql<number>`(select count(*)::int from requests r where r.lookup_id = lookups.id)`,
};

/** The request or the NPI to read the evidence for. */
type About = { readonly requestId: string } | { readonly npi: string };

/**
 * Reads the evidence for one request, or for the newest requests of an NPI.
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function readEvidence(db: Database, about: About) {
  return await query(db, async (tx) => {
    const asked = await readRequests(tx, about);
    const npi = 'npi' in about ? about.npi : asked[0]?.npi;
    if (npi === undefined) throw new Refusal('request_missing');
    const [provider = null] = await tx
      .select(PROVIDER)
      .from(providers)
      .where(eq(providers.npi, npi));
    const [suppression] = await tx.execute<{ suppressed: boolean }>(sql`
      select is_suppressed(${npi}, null) as suppressed`);
    const suppressions = await readSuppressions(tx, npi);
    const lookupIds = [...new Set(asked.flatMap(({ lookupId }) => lookupId ?? []))];
    const found = await readFindings(tx, asked, lookupIds);
    const isOfLookup = inArray(emailChecks.lookupId, lookupIds);
    const isOfNoLookup = and(eq(emailChecks.npi, npi), isNull(emailChecks.lookupId));
    const checks = await tx
      .select()
      .from(emailChecks)
      .where('npi' in about ? or(isOfLookup, isOfNoLookup) : isOfLookup)
      .orderBy(asc(emailChecks.id));
    const chapters = Map.groupBy(asked.reverse(), ({ id, lookupId }) => lookupId ?? id);
    return {
      npi,
      /** Null if neither the NPPES file nor the NPI registry contains the NPI. */
      provider,
      isSuppressed: suppression?.suppressed === true,
      /** The suppressions of the NPI, of its stored addresses, and of addresses in its results. */
      suppressions,
      /** The number of endpoints that NPPES lists. */
      endpoints: await tx.$count(providerEndpoints, eq(providerEndpoints.npi, npi)),
      /** All stored addresses of the NPI. */
      stored: await tx
        .select(STORED)
        .from(storedEmails)
        .where(eq(storedEmails.npi, npi))
        .orderBy(asc(storedEmails.firstSeenAt), asc(storedEmails.email)),
      /** The lookups, and the requests without a lookup, the oldest first. */
      chapters: [...chapters].map(([id, own]) => ({
        lookup: found.lookups.find((lookup) => lookup.id === id) ?? null,
        /**
         * The requests for which the evidence was read. Other requests of the same lookup are left
         * out.
         */
        requests: own,
        attempts: found.attempts.filter(({ lookupId }) => lookupId === id),
        checks: checks.filter(({ lookupId }) => lookupId === id),
        /** The addresses that still wait for a check. */
        waiting: found.waiting.filter(({ lookupId }) => lookupId === id),
        /** The rate-limit slots that these requests are waiting for now. */
        slots: found.slots.filter(({ requestId }) =>
          own.some(({ id }) => id === requestId),
        ),
      })),
      /**
       * Checks that were made without a lookup, such as rechecks before an address gets stale.
       * Empty if the evidence was read for a single request.
       */
      otherChecks: checks.filter(({ lookupId }) => lookupId === null).slice(-MAX_CHECKS),
    };
  });
}

/** Reads the requests that the evidence is about, newest first. */
async function readRequests(
  tx: PostgresJsDatabase,
  about: About,
): Promise<EvidenceRequest[]> {
  let isAskedFor: SQL | undefined;
  if ('requestId' in about) isAskedFor = eq(requests.id, about.requestId);
  else isAskedFor = and(eq(requests.npi, about.npi), isNull(requests.testOutcome));
  const isCharged = sql<boolean>`exists (
    select from ledger_entries where request_id = requests.id and kind = 'charge')`;
  return await tx
    .select({ ...getTableColumns(requests), isCharged })
    .from(requests)
    .where(isAskedFor)
    .orderBy(desc(requests.acceptedAt), desc(requests.id))
    .limit(MAX_REQUESTS);
}

/** Reads the suppressions of an NPI, of its stored addresses, and of addresses in its results. */
async function readSuppressions(
  tx: PostgresJsDatabase,
  npi: string,
): Promise<Suppression[]> {
  const rows = await tx.execute<Suppression & Record<string, unknown>>(sql`
    with addresses as (
      select lower(email) as email from stored_emails where npi = ${npi}
      union select lower(email) from requests where npi = ${npi} and email is not null
    )
    select kind, value, origin, reason, created_at as "createdAt"
      from suppressions s
     where kind = 'npi' and value = ${npi}
        or kind = 'email' and value in (
          select encode(sha256(convert_to(email, 'UTF8')), 'hex') from addresses)
        or kind = 'domain' and exists (
          select from addresses where '.' || split_part(email, '@', 2) like '%.' || s.value)
     order by created_at`);
  return [...rows];
}

/**
 * Reads the lookups of requests, their vendor attempts, the addresses that wait for a check, and the
 * rate-limit slots that the requests are waiting for.
 */
async function readFindings(
  tx: PostgresJsDatabase,
  asked: readonly EvidenceRequest[],
  lookupIds: string[],
) {
  const requestIds = asked.map(({ id }) => id);
  return {
    lookups: await tx.select(LOOKUP).from(lookups).where(inArray(lookups.id, lookupIds)),
    attempts: await tx
      .select(ATTEMPT)
      .from(vendorAttempts)
      .leftJoin(
        sourcePrices,
        eq(sourcePrices.source, sql`account_of(${vendorAttempts.vendor})`),
      )
      .where(inArray(vendorAttempts.lookupId, lookupIds))
      .orderBy(
        asc(vendorAttempts.startedAt),
        asc(vendorAttempts.vendor),
        asc(vendorAttempts.n),
      ),
    waiting: await tx
      .select()
      .from(candidates)
      .where(and(inArray(candidates.lookupId, lookupIds), isNull(candidates.verdict)))
      .orderBy(asc(candidates.namedAt), asc(candidates.email)),
    slots: await tx
      .select()
      .from(sourceSlots)
      .where(inArray(sourceSlots.requestId, requestIds))
      .orderBy(asc(sourceSlots.slotAt)),
  };
}
