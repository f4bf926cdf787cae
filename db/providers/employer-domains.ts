import { type Database, run } from '../connection/client.ts';

/**
 * An employer's domain that an operator has entered. If `domain` is null, the stored domain is
 * removed.
 */
export interface EmployerDomain {
  /** `npi:…`, `pac_id:…`, or `name:…` with the result of `organizationKey`. */
  readonly key: string;
  readonly domain: string | null;
}

export type DomainVerdict = 'added' | 'changed' | 'removed' | 'unchanged';

/**
 * Stores up to a few thousand domains in one statement. If several rows have the same key, the last
 * one is used. Safe to repeat.
 * @returns for each row, whether its domain was added, changed, or removed
 */
export async function storeEmployerDomains(
  db: Database,
  rows: readonly EmployerDomain[],
): Promise<DomainVerdict[]> {
  const given = JSON.stringify(rows.map((row, n) => ({ ...row, n })));
  const verdicts = await run<{ verdict: DomainVerdict }>(db)`
    with given as (
      select * from jsonb_to_recordset(${given}::jsonb) as g (n int, key text, domain text)
    ), last as (
      select distinct on (key) * from given order by key, n desc
    ), removed as (
      delete from employer_domains d using last l
       where d.key = l.key and l.domain is null
      returning d.key
    ), written as (
      insert into employer_domains as d (key, domain)
      select key, domain from last where domain is not null order by key
          on conflict (key) do update set domain = excluded.domain
       where d.domain <> excluded.domain
      returning key, xmax = 0 as is_new
    )
    select case when r.key is not null then 'removed'
                when w.is_new then 'added'
                when w.key is not null then 'changed'
                else 'unchanged' end as verdict
      from given g
      left join last l using (n)
      left join removed r on r.key = l.key
      left join written w on w.key = l.key
     order by g.n`;
  return verdicts.map(({ verdict }) => verdict);
}
