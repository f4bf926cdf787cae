import { and, eq, gte, type SQL, sql } from 'drizzle-orm';
import { span, type Transaction } from '../client.ts';
import { entitlements, requests, storedEmails } from '../schema.ts';
import type { EmailType, WantedType } from '../words.ts';

/** An email that can answer a request without asking anyone. */
export interface KnownEmail {
  readonly email: string;
  readonly emailType: EmailType;
  readonly lastValidatedAt: Date;
}

/** A request's columns when it is completed with an email. */
export function completed(known: KnownEmail, replayed: boolean, settledAt: Date) {
  return {
    status: 'completed',
    replayed,
    email: known.email,
    emailType: known.emailType,
    emailLastValidatedAt: known.lastValidatedAt,
    settledAt,
  } as const;
}

/**
 * What an organization has paid for within the replay window and may have again for nothing. Exactly `replayMs` after
 * the charge still counts; the clock starts at the charge (DECISIONS.md, Requests and batches).
 *
 * An address that was erased or suppressed since is not given again. It was paid for all the same: another one that
 * the directory holds comes in its place, free as well.
 * @returns per NPI the email that satisfies `wantedType`, the professional one if both do
 */
export async function findReplays(
  tx: Pick<Transaction, 'select'>,
  search: StoredSearch & { readonly organizationId: string; readonly replayMs: number },
): Promise<Map<string, KnownEmail>> {
  const rows = await tx
    .select({
      npi: entitlements.npi,
      emailType: entitlements.emailType,
      email: sql<string | null>`case when not is_suppressed(${entitlements.npi}, ${requests.email})
        then ${requests.email} end`,
      lastValidatedAt: requests.emailLastValidatedAt,
    })
    .from(entitlements)
    .innerJoin(requests, eq(requests.id, entitlements.requestId))
    .where(
      and(
        eq(entitlements.organizationId, search.organizationId),
        sql`${entitlements.npi} = any(${sql.param([...new Set(search.npis)])})`,
        gte(entitlements.chargedAt, new Date(search.at.getTime() - search.replayMs)),
        search.wantedType === 'any' ? undefined : eq(entitlements.emailType, search.wantedType),
        sql`not is_inactive(${entitlements.npi})`,
      ),
    )
    // The professional one last, so that it is the one that stays in the map.
    .orderBy(entitlements.emailType);
  const replays = byNpi(rows);
  const withheld = rows.map(({ npi }) => npi).filter((npi) => !replays.has(npi));
  if (withheld.length === 0) return replays;
  return new Map([...replays, ...(await findStoredEmails(tx, { ...search, npis: withheld }))]);
}

export interface StoredSearch {
  readonly npis: readonly string[];
  readonly wantedType: WantedType;
  readonly at: Date;
  readonly freshnessMs: number;
  /** The lookup that asks: an address that its source does not let us keep serves its own lookup alone. */
  readonly lookupId: string | null;
}

/**
 * The directory's valid emails whose last validation lies within the freshness window, but for those that are
 * suppressed.
 * @returns per NPI the email that satisfies `wantedType`, the professional and then the newest one if several do
 */
export async function findStoredEmails(
  tx: Pick<Transaction, 'select'>,
  search: StoredSearch,
): Promise<Map<string, KnownEmail>> {
  const at = search.at.toISOString();
  const rows = await tx
    .select({
      npi: storedEmails.npi,
      emailType: storedEmails.emailType,
      email: storedEmails.email,
      lastValidatedAt: storedEmails.lastValidatedAt,
    })
    .from(storedEmails)
    .where(
      and(
        sql`${storedEmails.npi} = any(${sql.param([...new Set(search.npis)])})`,
        isUsable({ ...search, at }, search.freshnessMs),
      ),
    )
    .orderBy(storedEmails.emailType, storedEmails.lastValidatedAt, storedEmails.email);
  return byNpi(rows);
}

/** Whether an address of the directory answers a lookup: see `findStoredEmails`. */
export function isUsable(
  { wantedType, lookupId, at }: Readonly<Record<'wantedType' | 'lookupId' | 'at', SQL | string | null>>,
  freshnessMs: number,
) {
  return and(
    eq(storedEmails.verdict, 'valid'),
    eq(storedEmails.unchecked, false),
    sql`${storedEmails.lastValidatedAt} >= ${at}::timestamptz - ${span(freshnessMs)}`,
    sql`${wantedType} in ('any', ${storedEmails.emailType})`,
    // Equality with null is never true.
    sql`(${storedEmails.mayStore} or exists (select from email_checks c where c.lookup_id = ${lookupId}
      and c.npi = stored_emails.npi and c.email = stored_emails.email and c.kind = 'named'))`,
    sql`not is_suppressed(${storedEmails.npi}, ${storedEmails.email})`,
    sql`not is_inactive(${storedEmails.npi})`,
  );
}

/**
 * Takes the right to charge this organization for this NPI and type: one conditional statement, so that of two
 * requests settling at once exactly one is charged within a replay window (ARCHITECTURE.md, Invariants, L5).
 * Whoever holds the organization's lock and has found no replay gets it.
 */
export async function claimEntitlement(
  tx: Transaction,
  claim: {
    readonly organizationId: string;
    readonly npi: string;
    readonly emailType: EmailType;
    readonly requestId: string;
    readonly at: Date;
    readonly replayMs: number;
  },
): Promise<void> {
  const { organizationId, npi, emailType, requestId, at: chargedAt, replayMs } = claim;
  const rows = await tx
    .insert(entitlements)
    .values({ organizationId, npi, emailType, requestId, chargedAt })
    .onConflictDoUpdate({
      target: [entitlements.organizationId, entitlements.npi, entitlements.emailType],
      set: { requestId, chargedAt },
      setWhere: sql`${entitlements.chargedAt} < ${new Date(chargedAt.getTime() - replayMs).toISOString()}::timestamptz`,
    })
    .returning({ requestId: entitlements.requestId });
  if (rows.length === 0) throw new Error('another request was charged for this within the replay window');
}

function byNpi(
  rows: readonly {
    npi: string;
    email: string | null;
    emailType: EmailType | null;
    lastValidatedAt: Date | null;
  }[],
): Map<string, KnownEmail> {
  const known = new Map<string, KnownEmail>();
  // Rows come in rising order of preference ('personal' sorts before 'professional').
  for (const { npi, email, emailType, lastValidatedAt } of rows) {
    if (email && emailType && lastValidatedAt) known.set(npi, { email, emailType, lastValidatedAt });
  }
  return known;
}
