import type { Sql } from 'postgres';

/**
 * Fills a migrated, empty database with the consistent data of `count` requests (a multiple of
 * 50,000) over 40 days. Nine in ten are in bulks of 45, the rest are single. They are charged,
 * released, replayed within a bulk and across bulks, failed, or open. They have deliveries with
 * attempts, entitlements, and Idempotency-Keys. The statements are set-based and run with triggers
 * off, so they also write the values that triggers would maintain.
 */
export async function fillDatabase(sql: Sql, count: number): Promise<void> {
  const bulks = count / 50;
  const singles = count / 10;
  await sql.begin(async (tx) => {
    await tx`set local session_replication_role = replica`;
    await tx`set local work_mem = '256MB'`;
    await tx.unsafe(planned(bulks, singles));
    for (const statement of STATEMENTS) await tx.unsafe(statement);
  });
  await sql`vacuum analyze`;
}

/**
 * Adds 100,000 requests that wait, each with a pending delivery: 20 bulks of 50 for each of 100
 * organizations. The triggers are off.
 */
export async function addWaiting(to: Sql): Promise<void> {
  await to.begin(async (tx) => {
    await tx`set local session_replication_role = replica`;
    await tx`
      insert into batches (id, organization_id, submitted_as, requested_type, total, webhook_url, webhook_mode,
                           created_at, updated_at, deadline_at)
      select 'bat_w' || n, 'org_01' || lpad((n % 100)::text, 24, '0'), 'bulk', 'any', 50, 'https://hooks.example/',
             'real-time', now(), now(), now() + interval '15 min' from generate_series(1, 2000) n`;
    await tx`
      insert into requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, accepted_at, deadline_at)
      select 'req_w' || b.id || '_' || p, b.id, organization_id, p, lpad((row_number() over ())::text, 10, '3'), 'any', 1,
             'accepted', created_at, deadline_at
        from batches b, generate_series(0, 49) p where b.id like 'bat_w%'`;
    await tx`
      insert into webhook_deliveries (id, batch_id, request_id, organization_id, state, created_at)
      select 'msg' || id, batch_id, id, organization_id, 'pending', accepted_at from requests where id like 'req_w%'`;
  });
  await to`analyze`;
}

const ORGANIZATIONS = 100;
/** Time-ordered, like real IDs. */
const id = (prefix: string, number: string) =>
  `'${prefix}_01' || lpad((${number})::text, 24, '0')`;

/**
 * The shape of every request. In each thousand bulks the last hundred repeat the hundred before
 * them, in the same organizations. The last entry of a bulk repeats the one before it. Some of the
 * newest bulks are still open.
 */
const planned = (bulks: number, singles: number) => `
  create temporary table planned on commit drop as
  with bulk as (
    select k as batch, k % ${ORGANIZATIONS} as organization, k / 100 % 10 = 9 as repeated,
           k >= ${bulks - 1000} and k / 100 % 10 = 7 and k % 100 < 20 as open,
           case k % 10 when 0 then 'personal' when 1 then 'professional' else 'any' end as requested_type,
           case k % 4 when 0 then 'real-time' when 1 then 'batch' end as mode, k
      from generate_series(0, ${bulks - 1}) k
  ), entry as (
    select batch, organization, repeated, open, requested_type, mode, 45 as total, p as position,
           case when repeated then k - 100 else k end * 45 + least(p, 43) as person, k * 45 + p as number,
           repeated or p = 44 as again,
           case when open then now() - interval '1 minute'
                else now() - interval '40 days' + k * interval '39 days' / ${bulks} end as created_at
      from bulk, generate_series(0, 44) p
    union all
    select ${bulks} + j, j % ${ORGANIZATIONS}, false, false, 'any',
           case j % 4 when 0 then 'real-time' end, 1, 0, 500000000 + j, ${bulks * 45} + j, false,
           now() - interval '40 days' + j * interval '39 days' / ${singles}
      from generate_series(0, ${singles - 1}) j
  )
  select ${id('bat', 'batch')} as batch_id, ${id('req', 'number')} as id, ${id('org', 'organization')} as organization_id,
         position, (1000000000 + person)::text as npi, requested_type, mode, total, number, open, outcome,
         outcome = 'completed' and again and not open as replayed,
         case when requested_type = 'personal' then 3 else 1 end as cost,
         outcome = 'completed' and repeated and not open as free,
         date_trunc('milliseconds', created_at) as created_at,
         date_trunc('milliseconds', created_at)
           + case when outcome = 'completed' and repeated then 0 else person % 60 + 5 + case position when 44 then 1 else 0 end end
             * interval '1 second' as settled_at
    from (select *, case when person * 7919::bigint % 100 < 70 then 'completed'
                         when person * 7919::bigint % 100 < 92 then 'not_found' else 'failed' end as outcome
            from entry) e
   order by created_at, number`;

const STATEMENTS = [
  `insert into organizations (id, name, webhook_secret)
   select ${id('org', 'n')}, 'Bench ' || n, 'none' from generate_series(0, ${ORGANIZATIONS - 1}) n`,
  `insert into batches (id, organization_id, submitted_as, requested_type, total, completed_count, webhook_url,
                        webhook_mode, created_at, updated_at, deadline_at, started_at)
   select batch_id, organization_id, case total when 1 then 'single' else 'bulk' end, requested_type, total,
          case when open then 0 else total end, case when mode is not null then 'https://hooks.example/' end, mode,
          created_at, created_at + interval '65 s', created_at + interval '15 min', created_at + interval '10 ms'
     from planned where position = 0 order by created_at`,
  `insert into requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, replayed, email, email_type,
                         email_last_validated_at, reason, accepted_at, deadline_at, started_at, settled_at)
   select id, batch_id, organization_id, position, npi, requested_type, cost, case when open then 'accepted' else outcome end,
          replayed, case when found then 'person-' || npi || '@clinic.example' end,
          case when found then case requested_type when 'personal' then 'personal' else 'professional' end end,
          case when found then created_at end, case when not found and not open then 'no_source' end, created_at,
          created_at + interval '15 min', case when not free and not open then created_at + interval '50 ms' end,
          case when not open then settled_at end
     from (select *, outcome = 'completed' and not open as found from planned) p order by created_at, number`,
  `insert into ledger_entries (organization_id, kind, amount, created_at)
   select id, 'grant', 10000000, now() - interval '41 days' from organizations`,
  `insert into ledger_entries (organization_id, request_id, kind, amount, created_at)
   select organization_id, id, kind, cost, at
     from planned cross join lateral (values
       ('hold', created_at, 0),
       (case when outcome = 'completed' and not replayed then 'charge' else 'release' end, settled_at, 1)
     ) entry (kind, at, step)
    where not free and (kind = 'hold' or not open) order by at, step, number`,
  `insert into credit_balances (organization_id, total, available, held, used)
   select organization_id, -sum(granted), sum(available), sum(held), sum(used)
     from ledger_entries group by organization_id`,
  `insert into entitlements (organization_id, npi, email_type, request_id, charged_at)
   select organization_id, npi, email_type, id, settled_at
     from requests where status = 'completed' and not replayed order by settled_at`,
  `insert into webhook_deliveries (id, batch_id, request_id, organization_id, state, attempts, created_at, decided_at)
   select ${id('msg', 'number')}, batch_id, case mode when 'real-time' then id end, organization_id,
          case when open then 'pending' when number % 100 = 0 then 'failed' else 'delivered' end,
          case when open then 0 when number % 100 = 0 then 10 when number % 20 = 0 then 3 else 1 end, created_at,
          case when not open then created_at + interval '10 min' end
     from planned where mode = 'real-time' or (mode = 'batch' and position = 0) order by created_at, number`,
  `insert into webhook_attempts (delivery_id, n, started_at, duration_ms, status_code)
   select id, n, created_at + n * interval '70 s', 40, case when state = 'delivered' and n = attempts then 200 else 500 end
     from webhook_deliveries, generate_series(1, attempts) n`,
  `insert into idempotency_keys (organization_id, method, path, key, fingerprint, response, created_at, expires_at)
   select organization_id, 'POST', '/api/v1/email', 'order-' || number, '', '{"batch_id":"' || batch_id || '"}',
          created_at, created_at + interval '1 day'
     from planned where total = 1 and created_at > now() - interval '3 days'`,
  `insert into sweeps (due_at, swept_at) values (now(), now() + interval '1 day')`,
];
