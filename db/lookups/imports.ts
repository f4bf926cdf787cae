import { sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, run, transaction } from '../client.ts';
import { newId } from '../ids.ts';
import type { EmailType, ImportKind } from '../words.ts';

/**
 * An address of the operator's own data, normalized, and not one that our checks refuse by its
 * looks.
 */
export interface OwnEmail {
  readonly npi: string;
  readonly email: string;
  readonly emailType: EmailType;
  /**
   * When the operator's source saw it answer; null makes it a candidate that is checked before it
   * is served.
   */
  readonly validatedAt: Date | null;
  readonly source: string;
  /**
   * False for an address with a date whose domain no check has seen yet: the next lookup checks it
   * first.
   */
  readonly checked: boolean;
}

/**
 * Stores up to some thousand addresses in one statement. Safe to repeat: newer evidence wins,
 * whoever has it, and an address that was erased or suppressed stays out.
 * @returns a verdict for each; of rows about one address the newest is stored, and the others
 * change nothing
 */
export async function storeOwnEmails(db: Database, rows: readonly OwnEmail[]) {
  const given = await run<{ verdict: 'stored' | 'unchanged' | 'suppressed' }>(db)`
    with given as (
      select npi, email, "emailType", source, checked, n,
             -- The clock of the machine that imports may be ahead.
             case when "validatedAt" is not null then least("validatedAt", clock_timestamp()) end as "validatedAt"
        from rows from (jsonb_to_recordset(${JSON.stringify(rows)}::jsonb)
               as (npi text, email text, "emailType" text, "validatedAt" timestamptz(3), source text, checked boolean))
             with ordinality as g (npi, email, "emailType", "validatedAt", source, checked, n)
    ), newest as (
      select distinct on (npi, email) g.*, is_suppressed(npi, email) as suppressed
        from given g order by npi, email, "validatedAt" desc nulls last, n
    ), written as (
      -- In one order, so that two imports at once cannot wait for each other.
      insert into stored_emails as s
             (npi, email, email_type, verdict, reason, last_validated_at, source, unchecked)
      select npi, email, "emailType", case when "validatedAt" is null then 'unknown' else 'valid' end,
             case when "validatedAt" is not null then 'imported' end, "validatedAt", source,
             "validatedAt" is null or not checked
        from newest where not suppressed order by npi collate "C", email collate "C"
          on conflict (npi, email) do update
         set email_type = excluded.email_type, verdict = excluded.verdict, reason = excluded.reason,
             last_validated_at = excluded.last_validated_at, source = excluded.source,
             -- One that our checks have passed stays: another lookup may be about to answer with it.
             unchecked = excluded.unchecked and not (s.verdict = 'valid' and not s.unchecked and s.may_store),
             checking_until = null, may_store = true, updated_at = clock_timestamp()
       where excluded.verdict = 'valid' and case
         -- The same word again does not undo a check that has begun.
         when s.unchecked then s.last_validated_at is distinct from excluded.last_validated_at
                               or s.source <> excluded.source
         when not s.may_store then true
         when s.verdict = 'valid' then s.last_validated_at < excluded.last_validated_at
         -- What made it bad was seen when the row was written.
         else s.updated_at < excluded.last_validated_at end
      returning npi, email
    )
    select case when o.suppressed then 'suppressed' when w.npi is not null then 'stored' else 'unchanged' end as verdict
      from given g
      join newest o on o.npi = g.npi and o.email = g.email
      left join written w on w.npi = g.npi and w.email = g.email and o.n = g.n
     order by g.n`;
  return given.map(({ verdict }) => verdict);
}

/**
 * What an import did, in rows by verdict; of CMS's files by file and fate, such as
 * `npidata.inserted`.
 */
export type Counts = Readonly<Record<string, number>>;

/** What CMS publishes that is imported as it was downloaded. */
export type Dataset = Extract<ImportKind, 'nppes' | 'clinicians'>;

/**
 * What the newest import of a download did; null if it did not come to its end, or was never made.
 */
export async function findImport(
  db: Database,
  kind: Dataset,
  fingerprint: string,
): Promise<Counts | null> {
  const [last] = await run<{ state: string; counts: Counts }>(db)`
    select state, counts from import_runs where kind = ${kind} and fingerprint = ${fingerprint}
     order by started_at desc limit 1`;
  return last?.state === 'done' ? last.counts : null;
}

/**
 * Notes that an import begins, and in the audit log who wants it. One of the same file that never
 * came to its end is marked as failed: it is being repeated. Of CMS's any: whoever begins one holds
 * the lock that lets one run at a time.
 * @param file.name without its folder
 * @param file.fingerprint tells the same content again
 * @returns its id, and the number that stands in the rows that it writes
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
      update import_runs set state = 'failed', finished_at = clock_timestamp()
       where kind = ${kind} and state = 'running' and (${isOfCms} or fingerprint = ${file.fingerprint})`);
    const [row] = await tx.execute<{ number: number }>(sql`
      insert into import_runs (id, kind, file, fingerprint, state)
      values (${id}, ${kind}, ${file.name}, ${file.fingerprint}, 'running')
      returning number`);
    const details = { file: file.name };
    await recordAudit(tx, by, {
      action: `${kind}.import`,
      organizationId: null,
      subject: id,
      details,
    });
    return { id, number: row?.number ?? 0 };
  });
}

/** Notes how an import ended, and what it did. */
export async function endImport(
  db: Database,
  id: string,
  state: 'done' | 'failed',
  counts: Counts,
): Promise<void> {
  await run(db)`
    update import_runs set state = ${state}, counts = ${JSON.stringify(counts)}::jsonb, finished_at = clock_timestamp()
     where id = ${id}`;
}
