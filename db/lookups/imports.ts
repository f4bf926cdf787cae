import { and, desc, eq, sql } from 'drizzle-orm';
import { type Database, only, query, run, transaction } from '../connection/client.ts';
import { newId } from '../connection/ids.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { clockTime } from '../schema/columns.ts';
import { importRuns } from '../schema.ts';
import type { EmailType, ImportKind } from '../words.ts';

/**
 * A normalized address from the operator's own data that has passed the checks that need no
 * network.
 */
export interface OwnEmail {
  readonly npi: string;
  readonly email: string;
  readonly emailType: EmailType;
  /**
   * The date when the operator validated the address. If it is null, the address is checked before
   * it is returned to a client.
   */
  readonly validatedAt: Date | null;
  readonly source: string;
  /**
   * False if the domain of an address with a validation date was never checked. The next lookup
   * then checks the address before returning it.
   */
  readonly checked: boolean;
}

/**
 * Stores up to a few thousand addresses in one statement. Safe to repeat. If an address is already
 * stored, the row with the newer validation is kept. It does not matter which source a row is from.
 * Erased and suppressed addresses are not stored.
 * @returns a verdict for each row. If several rows have the same NPI and address, only the newest
 * one is stored, and the verdict of the others is `unchanged`
 */
export async function storeOwnEmails(db: Database, rows: readonly OwnEmail[]) {
  const given = await run<{ verdict: 'stored' | 'unchanged' | 'suppressed' }>(db)`
    with given as (
      select npi, email, "emailType", source, checked, n,
             -- The importing machine's clock may be fast, so a time in the future is replaced by
             -- the current time.
             case
               when "validatedAt" is not null then least("validatedAt", clock_timestamp())
             end as "validatedAt"
        from rows from (jsonb_to_recordset(${JSON.stringify(rows)}::jsonb) as (
               npi text, email text, "emailType" text,
               "validatedAt" timestamptz(3), source text, checked boolean
             )) with ordinality as g (npi, email, "emailType", "validatedAt", source, checked, n)
    ), newest as (
      select distinct on (npi, email) g.*, is_suppressed(npi, email) as suppressed
        from given g
       order by npi, email, "validatedAt" desc nulls last, n
    ), written as (
      -- The rows are sorted, so that two concurrent imports cannot deadlock.
      insert into stored_emails as s
             (npi, email, email_type, verdict, reason, last_validated_at, source)
      select npi,
             email,
             "emailType",
             -- The next lookup checks an address without a date, or whose domain was never checked.
             case when "validatedAt" is not null and checked then 'valid' else 'unknown' end,
             'imported',
             "validatedAt",
             source
        from newest
       where not suppressed
       order by npi collate "C", email collate "C"
          on conflict (npi, email) do update
         set email_type = excluded.email_type,
             -- An address that passed our checks stays valid, because a lookup may be about to
             -- return it.
             verdict = case when s.verdict = 'valid' then 'valid' else excluded.verdict end,
             reason = excluded.reason,
             last_validated_at = excluded.last_validated_at,
             source = excluded.source,
             updated_at = clock_timestamp()
       where excluded.last_validated_at is not null and case
         when s.verdict = 'valid' then s.last_validated_at < excluded.last_validated_at
         when s.verdict = 'unknown' and s.reason = 'imported'
           then s.last_validated_at is distinct from excluded.last_validated_at
                or s.source <> excluded.source
         -- A rejected address is only replaced if it was validated after the rejection, which was
         -- the last update of the row.
         else s.updated_at < excluded.last_validated_at
       end
      returning npi, email
    )
    select case
             when o.suppressed then 'suppressed'
             when w.npi is not null then 'stored'
             else 'unchanged'
           end as verdict
      from given g
      join newest o on o.npi = g.npi and o.email = g.email
      left join written w on w.npi = g.npi and w.email = g.email and o.n = g.n
     order by g.n`;
  return given.map(({ verdict }) => verdict);
}

/**
 * The number of imported rows by verdict. Imports of CMS files count rows by file and result, such
 * as `npidata.inserted`.
 */
export type Counts = (typeof importRuns.$inferSelect)['counts'];

/** The CMS data sets whose downloaded files are imported unchanged. */
export type Dataset = Extract<ImportKind, 'nppes' | 'clinicians'>;

/**
 * Returns the counts of the newest import of a downloaded file. Null if the file was never
 * imported, or if its newest import did not finish.
 */
export async function findImport(
  db: Database,
  kind: Dataset,
  fingerprint: string,
): Promise<Counts | null> {
  const [last] = await query(db, (tx) =>
    tx
      .select({ state: importRuns.state, counts: importRuns.counts })
      .from(importRuns)
      .where(and(eq(importRuns.kind, kind), eq(importRuns.fingerprint, fingerprint)))
      .orderBy(desc(importRuns.startedAt))
      .limit(1),
  );
  if (last?.state !== 'done') return null;
  return last.counts;
}

/**
 * Records the start of an import, and adds an audit log entry. An unfinished import of the same
 * file is marked as failed, because this import repeats it. The start of a CMS import marks all
 * unfinished imports of its kind as failed. None of them can be running, because the caller holds
 * the lock that allows only one at a time.
 * @param file.name the file name without its folder
 * @param file.fingerprint a value that is equal for files with equal content
 * @returns the id of the import, and the number that is written into the imported rows
 */
export async function beginImport(
  db: Database,
  by: ChangedBy,
  kind: ImportKind,
  file: { readonly name: string; readonly fingerprint: string },
): Promise<{ id: string; number: number }> {
  const id = newId('imp');
  const isOfCms = kind === 'nppes' || kind === 'clinicians';
  return await transaction(db, async (tx) => {
    await tx.execute(sql`
      update import_runs
         set state = 'failed', finished_at = clock_timestamp()
       where kind = ${kind}
         and state = 'running'
         and (${isOfCms} or fingerprint = ${file.fingerprint})`);
    const rows = await tx
      .insert(importRuns)
      .values({
        id,
        kind,
        file: file.name,
        fingerprint: file.fingerprint,
        state: 'running',
      })
      .returning({ number: importRuns.number });
    const details = { file: file.name };
    await recordAudit(tx, by, {
      action: `${kind}.import`,
      organizationId: null,
      subject: id,
      details,
    });
    return { id, number: only(rows).number };
  });
}

/** Records how an import ended, with its counts. */
export async function endImport(
  db: Database,
  id: string,
  state: 'done' | 'failed',
  counts: Counts,
): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(importRuns)
      .set({ state, counts, finishedAt: clockTime })
      .where(eq(importRuns.id, id)),
  );
}
