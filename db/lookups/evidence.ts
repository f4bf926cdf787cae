import { and, asc, count, desc, eq, getTableColumns, inArray, isNull, sql } from 'drizzle-orm';
import { type Database, query, type Transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import {
  emailChecks,
  lookups,
  providerEndpoints,
  providers,
  requests,
  storedEmails,
  vendorAttempts,
} from '../schema.ts';

// What is known of how an NPI came to its answers. Holds addresses: whoever shows it decides what of that to show.

/** How many of an NPI's newest requests, and of its checks outside of lookups, are told of. */
const REQUESTS_AT_MOST = 20;
const CHECKS_AT_MOST = 50;

type Rows<T extends (...args: never[]) => Promise<unknown[]>> = Awaited<ReturnType<T>>[number];

export type EvidenceRequest = Rows<typeof selectRequests>;
export type EvidenceAttempt = Rows<typeof selectAttempts>;
export type EvidenceCheck = Rows<typeof selectChecks>;
export type EvidenceStored = Rows<typeof selectStored>;
export type EvidenceProvider = Rows<typeof selectProvider>;

/** One lookup with all that was asked and answered in it, or one request that needed none. */
export interface Chapter {
  readonly lookup: (typeof lookups.$inferSelect & { readonly requestCount: number }) | null;
  /** Oldest first: of the lookup those that were asked about. */
  readonly requests: readonly EvidenceRequest[];
  readonly attempts: readonly EvidenceAttempt[];
  readonly checks: readonly EvidenceCheck[];
}

export interface Evidence {
  readonly npi: string;
  /** Null if neither NPPES nor the registry has told us of it. */
  readonly provider: EvidenceProvider | null;
  readonly isSuppressed: boolean;
  /** How many endpoints NPPES lists. */
  readonly endpoints: number;
  /** Everything the directory holds for the NPI. */
  readonly stored: readonly EvidenceStored[];
  /** Oldest first. */
  readonly chapters: readonly Chapter[];
  /** Made when no request waited: stored addresses that were looked at again. Only if an NPI was asked about. */
  readonly otherChecks: readonly EvidenceCheck[];
}

/**
 * The evidence for one request, or for the newest requests of an NPI.
 * @throws {Refusal} `request_missing` for an unknown id
 */
export async function readEvidence(
  db: Database,
  about: { readonly requestId: string } | { readonly npi: string },
): Promise<Evidence> {
  return await query(db, async (tx) => {
    const asked = await selectRequests(tx, about);
    const npi = 'npi' in about ? about.npi : asked[0]?.npi;
    if (npi === undefined) throw new Refusal('request_missing');
    const [provider] = await selectProvider(tx, npi);
    const [suppression] = await tx.execute<{ suppressed: boolean }>(
      sql`select is_suppressed(${npi}, null) as suppressed`,
    );
    const [endpoints] = await tx
      .select({ total: count() })
      .from(providerEndpoints)
      .where(eq(providerEndpoints.npi, npi));
    return {
      npi,
      provider: provider ?? null,
      isSuppressed: suppression?.suppressed === true,
      endpoints: endpoints?.total ?? 0,
      stored: await selectStored(tx, npi),
      chapters: await readChapters(tx, asked),
      otherChecks: 'npi' in about ? await selectOtherChecks(tx, npi) : [],
    };
  });
}

async function readChapters(tx: Reading, asked: readonly EvidenceRequest[]): Promise<Chapter[]> {
  const ids = [...new Set(asked.flatMap(({ lookupId }) => lookupId ?? []))];
  const lookupOf = new Map((await selectLookups(tx, ids)).map((lookup) => [lookup.id, lookup]));
  const attemptsOf = Map.groupBy(await selectAttempts(tx, ids), ({ lookupId }) => lookupId);
  const checksOf = Map.groupBy(await selectChecks(tx, ids), ({ lookupId }) => lookupId ?? '');
  const chapters = Map.groupBy(asked.toReversed(), ({ id, lookupId }) => lookupId ?? id);
  return [...chapters].map(([id, own]) => ({
    lookup: lookupOf.get(id) ?? null,
    requests: own,
    attempts: attemptsOf.get(id) ?? [],
    checks: checksOf.get(id) ?? [],
  }));
}

type Reading = Pick<Transaction, 'select'>;

/** Newest first. */
async function selectRequests(tx: Reading, about: { requestId: string } | { npi: string }) {
  return await tx
    .select()
    .from(requests)
    .where('requestId' in about ? eq(requests.id, about.requestId) : eq(requests.npi, about.npi))
    .orderBy(desc(requests.acceptedAt), desc(requests.id))
    .limit(REQUESTS_AT_MOST);
}

async function selectLookups(tx: Reading, ids: readonly string[]) {
  return await tx
    .select({
      ...getTableColumns(lookups),
      requestCount: sql<number>`(select count(*)::int from requests r where r.lookup_id = lookups.id)`,
    })
    .from(lookups)
    .where(inArray(lookups.id, [...ids]));
}

async function selectAttempts(tx: Reading, ids: readonly string[]) {
  return await tx
    .select()
    .from(vendorAttempts)
    .where(inArray(vendorAttempts.lookupId, [...ids]))
    .orderBy(asc(vendorAttempts.startedAt), asc(vendorAttempts.vendor), asc(vendorAttempts.n));
}

async function selectChecks(tx: Reading, ids: readonly string[]) {
  return await tx
    .select()
    .from(emailChecks)
    .where(inArray(emailChecks.lookupId, [...ids]))
    .orderBy(asc(emailChecks.id));
}

async function selectOtherChecks(tx: Reading, npi: string) {
  const newest = await tx
    .select()
    .from(emailChecks)
    .where(and(eq(emailChecks.npi, npi), isNull(emailChecks.lookupId)))
    .orderBy(desc(emailChecks.id))
    .limit(CHECKS_AT_MOST);
  return newest.reverse();
}

async function selectStored(tx: Reading, npi: string) {
  return await tx
    .select({
      ...getTableColumns(storedEmails),
      isSuppressed: sql<boolean>`is_suppressed(${storedEmails.npi}, ${storedEmails.email})`,
    })
    .from(storedEmails)
    .where(eq(storedEmails.npi, npi))
    .orderBy(asc(storedEmails.firstSeenAt), asc(storedEmails.email));
}

async function selectProvider(tx: Reading, npi: string) {
  const { rowHash: _hash, phoneKey: _phone, addressKey: _address, ...columns } = getTableColumns(providers);
  return await tx.select(columns).from(providers).where(eq(providers.npi, npi));
}
