import { createHash } from 'node:crypto';
import { and, count, countDistinct, desc, eq, sql } from 'drizzle-orm';
import { type Database, only, query, run, transaction } from '../connection/client.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { requests, storedEmails, suppressions } from '../schema.ts';
import { SERVICE, type SuppressionKind, type SuppressionOrigin } from '../words.ts';

// Suppressions name people who must not be looked up or returned. The SQL function `is_suppressed`
// checks every email before a request is completed with it. If suppressions have changed since
// then, polls and deliveries check the email again.

/**
 * A suppressed value, in the form in which it is stored: an NPI, the SHA-256 of an address, or a
 * domain with its subdomains.
 */
export type SuppressionTarget = Readonly<
  Pick<typeof suppressions.$inferSelect, 'kind' | 'value'>
>;

export type Suppression = Readonly<typeof suppressions.$inferSelect>;

/**
 * Returns the hash that identifies an address that must not be stored.
 * @param email normalized: lowercase, its domain in A-labels
 * @returns 64 hex digits; other companies' lists with SHA-256 hashes of lowercase addresses contain
 * the same hash for the same address
 */
export function hashAddress(email: string): string {
  return createHash('sha256').update(email).digest('hex');
}

/**
 * Suppresses one NPI, address, or domain.
 * @returns false if it was suppressed already
 */
export async function addSuppression(
  db: Database,
  by: ChangedBy,
  { kind, value }: SuppressionTarget,
  origin: SuppressionOrigin = 'operator',
): Promise<boolean> {
  return await transaction(db, async (tx) => {
    const added = await tx
      .insert(suppressions)
      .values({ kind, value, origin, reason: by.reason })
      .onConflictDoNothing()
      .returning({ value: suppressions.value });
    const isNew = added.length > 0;
    // An operator's suppression is a person's objection, which is recorded even if the suppression
    // already existed.
    if (isNew || origin === 'operator') {
      await recordAudit(tx, by, {
        action: 'suppressions.add',
        organizationId: null,
        subject: value,
        details: { kind, origin, added: isNew },
      });
    }
    return isNew;
  });
}

/**
 * Suppresses a person because a vendor says that the person must not be processed (Hunter responds
 * with status 451). Call it before you store the vendor's response, so that a crash in between
 * cannot lose the suppression. Safe to repeat.
 */
export async function suppressFromVendor(
  db: Database,
  npi: string,
  vendor: string,
): Promise<void> {
  const by = {
    actor: SERVICE,
    reason: `${vendor}: the person asked not to be processed`,
  };
  await addSuppression(db, by, { kind: 'npi', value: npi }, 'vendor');
}

/**
 * Counts the stored addresses at these domains and their subdomains, the completed requests with
 * such an address, and their organizations. It is slow, because it reads all stored addresses and
 * all requests.
 */
export async function countDomains(db: Database, domains: readonly string[]) {
  const patterns = domains.flatMap((domain) => [`%@${domain}`, `%@%.${domain}`]);
  const isThere = sql`email ilike any (${sql.param(patterns)}::text[])`;
  const organizations = countDistinct(requests.organizationId);
  return await query(db, async (tx) => {
    const stored = await tx
      .select({ storedEmails: count() })
      .from(storedEmails)
      .where(isThere);
    const returned = await tx
      .select({ results: count(), organizations })
      .from(requests)
      .where(isThere);
    return { ...only(stored), ...only(returned) };
  });
}

/**
 * Removes a suppression, including one from an erasure. Sources may then return the address again.
 * @returns the origin of the suppression, or null if it was not suppressed
 */
export async function removeSuppression(
  db: Database,
  by: ChangedBy,
  { kind, value }: SuppressionTarget,
): Promise<SuppressionOrigin | null> {
  return await transaction(db, async (tx) => {
    const [removed] = await tx
      .delete(suppressions)
      .where(and(eq(suppressions.kind, kind), eq(suppressions.value, value)))
      .returning({ origin: suppressions.origin });
    if (!removed) return null;
    const { origin } = removed;
    await recordAudit(tx, by, {
      action: 'suppressions.remove',
      organizationId: null,
      subject: value,
      details: { kind, origin },
    });
    return origin;
  });
}

/**
 * Lists suppressions, the newest first.
 * @param kind null for all kinds
 */
export async function listSuppressions(
  db: Database,
  kind: SuppressionKind | null,
  limit: number,
): Promise<Suppression[]> {
  const isShown = kind === null ? undefined : eq(suppressions.kind, kind);
  return await query(db, (tx) =>
    tx
      .select()
      .from(suppressions)
      .where(isShown)
      .orderBy(desc(suppressions.createdAt), suppressions.kind, suppressions.value)
      .limit(limit),
  );
}

/**
 * Adds the suppressions of an imported list. The audit log records only the import. Safe to repeat.
 * @returns for each row whether it was new; if several rows are equal, only the first one counts as
 * new
 */
export async function importSuppressions(
  db: Database,
  rows: readonly (SuppressionTarget & { readonly reason: string })[],
): Promise<boolean[]> {
  const given = await run<{ isNew: boolean }>(db)`
    with given as (
      select *
        from rows from (
               jsonb_to_recordset(${JSON.stringify(rows)}::jsonb)
                 as (kind text, value text, reason text))
             with ordinality as g (kind, value, reason, n)
    ), firsts as (
      select distinct on (kind, value) * from given order by kind, value, n
    ), added as (
      -- Inserts in a fixed order, so that two concurrent imports cannot deadlock.
      insert into suppressions (kind, value, origin, reason)
      select kind, value, 'import', reason from firsts order by kind, value collate "C"
          on conflict do nothing returning kind, value
    )
    select a.kind is not null as "isNew"
      from given g
      left join firsts f using (n)
      left join added a on a.kind = f.kind and a.value = f.value
     order by g.n`;
  return given.map(({ isNew }) => isNew);
}
