import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Sql, TransactionSql } from 'postgres';
import type { Ledger } from './model-client.ts';

/**
 * Checks the invariants of money (ARCHITECTURE.md, Invariants, L1 to L6 and S1) in the tables of
 * some organizations. It trusts no derived column, but computes all sums and counts again.
 * @returns one line per violation
 */
export async function auditLedger(
  sql: Sql | TransactionSql,
  organizationIds: readonly string[],
  replayMs: number,
): Promise<string[]> {
  const rows = await sql<{ finding: string }[]>`
    with entries as (
      select * from ledger_entries where organization_id = any(${[...organizationIds]})
    ), own as (
      select r.*, count(e.id) filter (where e.kind = 'hold') as holds,
             count(e.id) filter (where e.kind = 'charge') as charges,
             count(e.id) filter (where e.kind = 'release') as releases,
             count(distinct e.amount) filter (where e.id is not null) as amounts, min(e.amount) as amount,
             min(e.created_at) filter (where e.kind = 'charge') as charged_at,
             min(e.id) filter (where e.kind = 'charge') as charge
        from batches b
        join requests r on r.batch_id = b.id
        left join entries e on e.request_id = r.id
       where b.organization_id = any(${[...organizationIds]})
       group by r.id, b.id
    ), sums as (
      select organization_id, sum(case when kind in ('grant', 'adjustment') then amount else 0 end) as total,
             sum(case kind when 'hold' then -amount when 'charge' then 0 else amount end) as available,
             sum(case kind when 'hold' then amount when 'charge' then -amount when 'release' then -amount else 0 end) as held,
             sum(case when kind = 'charge' then amount else 0 end) as used,
             sum(granted + available + held + used) as zero
        from entries group by organization_id
    )
    select 'L1 balance of ' || b.organization_id as finding
      from credit_balances b left join sums s using (organization_id)
     where b.organization_id = any(${[...organizationIds]})
       and ((b.total, b.available, b.held, b.used) is distinct from
            (coalesce(s.total, 0), coalesce(s.available, 0), coalesce(s.held, 0), coalesce(s.used, 0))
            or b.total <> b.available + b.held + b.used or coalesce(s.zero, 0) <> 0)
    union all
    select 'L2 overspent by ' || organization_id from credit_balances
     where organization_id = any(${[...organizationIds]}) and (available < 0 or held < 0 or used < 0)
    union all
    select 'L3 holds and settlements of ' || id from own
     where holds > 1 or charges + releases > holds or amounts > 1
        or amount <> cost
        or (settled_at is null and (holds, charges, releases) <> (1, 0, 0))
        or (settled_at is not null and holds <> charges + releases)
    union all
    select 'L4 status against charge of ' || id from own
     where (status = 'completed' and not replayed) <> (charges = 1)
        or (status in ('not_found', 'failed') and releases <> 1)
        or credits_used <> case when charges = 1 then amount else 0 end
    union all
    select 'L5 charged again: ' || later.id
      from own later join own earlier
        on earlier.organization_id = later.organization_id and earlier.npi = later.npi and earlier.charge < later.charge
     where later.charged_at - earlier.charged_at <= make_interval(secs => ${replayMs / 1000}::float8)
       and later.requested_type in ('any', earlier.email_type)
    union all
    select 'L5 replayed without a charge: ' || later.id from own later
     where later.replayed and later.test_outcome is distinct from 'replayed' and not exists (
       select from own earlier
        where earlier.organization_id = later.organization_id and earlier.npi = later.npi and earlier.charges = 1
          and earlier.charged_at <= later.settled_at
          and later.settled_at - earlier.charged_at <= make_interval(secs => ${replayMs / 1000}::float8)
          and later.email = earlier.email and later.requested_type in ('any', earlier.email_type))
    union all
    -- By requested type instead of by day, because some tests move requests into the past.
    select 'L6 usage of ' || requested_type
      from (
        select requested_type, found, replayed, not_found, failed, credits_charged
          from daily_usage where organization_id = any(${[...organizationIds]})
        union all
        select requested_type, -(charges = 1)::int, -replayed::int, -(status = 'not_found')::int,
               -(status = 'failed')::int, -coalesce(amount, 0) * (charges = 1)::int
          from own where settled_at is not null) u
     group by requested_type
    having (sum(found), sum(replayed), sum(not_found), sum(failed), sum(credits_charged)) <> (0, 0, 0, 0, 0)
    union all
    select 'S1 count of ' || b.id
      from batches b join own r on r.batch_id = b.id
     group by b.id
    having b.completed_count <> count(r.settled_at) or b.total <> count(*)
        or (b.status = 'completed') <> (count(r.settled_at) = b.total)`;
  return rows.map(({ finding }) => finding);
}

/** One change to the text of a file in db/, which must contain `from`. */
export interface Mutation {
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

/** Removes the locks on balance and request from a settlement. */
export const WITHOUT_LOCKS: readonly Mutation[] = [
  { file: 'accounts/balance.ts', from: ' for update`', to: '`' },
  { file: 'requests/settle.ts', from: '       for update`', to: '`' },
  { file: 'requests/settle.ts', from: ".for('update')", to: '' },
];

const DB = new URL('../../db/', import.meta.url);

/**
 * Loads the real `submit` and `settle` with guards removed. db/ is copied, changed, and imported
 * from the copy, so that the service needs no switch for faults.
 */
export async function mutantLedger(mutations: readonly Mutation[]): Promise<Ledger> {
  const folder = await mkdtemp(join(tmpdir(), 'mutant-'));
  try {
    await writeFile(join(folder, 'package.json'), '{"type":"module"}');
    const names = await readdir(DB, { recursive: true });
    const nowhere = mutations.find(({ file }) => !names.includes(file));
    if (nowhere) throw new Error(`there is no db/${nowhere.file}`);
    for (const name of names) {
      if (!/\.(?:ts|json)$/.test(name) || name.startsWith('migrations')) continue;
      const text = await readFile(new URL(name, DB), 'utf8');
      const mutated = mutations.filter(({ file }) => file === name).reduce(mutate, text);
      await mkdir(dirname(join(folder, name)), { recursive: true });
      // A process can register each counter only once.
      const copied =
        name === 'operations/metrics.ts'
          ? `export * from '${new URL(name, DB)}';`
          : mutated;
      await writeFile(
        join(folder, name),
        copied.replaceAll(/ from '([a-z@][\w@/.-]*)';$/gm, absolute),
      );
    }
    const load = async (name: string) =>
      await import(pathToFileURL(join(folder, name)).href);
    const [{ submit }, { settle }] = await Promise.all([
      load('requests/submit.ts'),
      load('requests/settle.ts'),
    ]);
    return { submit, settle };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function mutate(text: string, { file, from, to }: Mutation): string {
  if (!text.includes(from)) throw new Error(`db/${file} no longer contains: ${from}`);
  return text.replace(from, () => to);
}

/** Replaces a package name by its URL, because a copy in another folder can't resolve packages. */
function absolute(_match: string, specifier: string): string {
  return ` from '${import.meta.resolve(specifier)}';`;
}
