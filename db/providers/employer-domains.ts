import { sql } from 'drizzle-orm';
import { type Database, query } from '../client.ts';
import type { EmployerIdKind } from '../words.ts';

// The operator's table of organizations and their domains.

/** An organization by its NPI, its PAC id or the key of its name, and its domain; null to forget it. */
export interface EmployerDomain {
  readonly kind: EmployerIdKind;
  readonly value: string;
  readonly domain: string | null;
}

export type DomainVerdict = 'added' | 'changed' | 'removed' | 'unchanged';

/**
 * Stores up to some thousand in one statement. Of several about one organization the last counts. Safe to repeat.
 * @returns a verdict for each
 */
export async function storeEmployerDomains(
  db: Database,
  rows: readonly EmployerDomain[],
): Promise<DomainVerdict[]> {
  const given = JSON.stringify(rows.map((row, n) => ({ ...row, n })));
  const verdicts = await query(db, (tx) =>
    tx.execute<{ verdict: DomainVerdict }>(sql`
      with given as (
        select * from jsonb_to_recordset(${given}::jsonb) as g (n int, kind text, value text, domain text)
      ), last as (
        select distinct on (kind, value) * from given order by kind, value, n desc
      ), removed as (
        delete from employer_domains d using last l
         where d.kind = l.kind and d.value = l.value and l.domain is null
        returning l.n
      ), written as (
        insert into employer_domains as d (kind, value, domain)
        select kind, value, domain from last where domain is not null order by kind, value
            on conflict (kind, value) do update set domain = excluded.domain where d.domain <> excluded.domain
        returning kind, value, xmax = 0 as is_new
      )
      select case when r.n is not null then 'removed' when w.is_new then 'added'
                  when w.kind is not null then 'changed' else 'unchanged' end as verdict
        from given g
        left join last l on l.n = g.n
        left join removed r on r.n = l.n
        left join written w on w.kind = l.kind and w.value = l.value
       order by g.n`),
  );
  return verdicts.map(({ verdict }) => verdict);
}
