import { appendFile, chmod, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import postgres, { type Sql, type TransactionSql } from 'postgres';
import { listLedger } from '../../db/accounts/ledger.ts';
import { readUsage } from '../../db/accounts/usage.ts';
import { type Database, openDatabase, transaction } from '../../db/connection/client.ts';
import { newId } from '../../db/connection/ids.ts';
import { diagnose } from '../../db/doctor/doctor.ts';
import { migrate } from '../../db/operations/migrate.ts';
import { readStats } from '../../db/operations/stats.ts';
import { exportSubject } from '../../db/privacy/privacy.ts';
import { listBatches } from '../../db/requests/batches.ts';
import { findKnownEmails } from '../../db/requests/entitlements.ts';
import { findEnvelope, findEnvelopeState } from '../../db/requests/envelope.ts';
import {
  claimUnfinished,
  listOverdueOwners,
  listToStart,
} from '../../db/requests/outbox.ts';
import { forgetOld } from '../../db/requests/retention.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { listDeliveriesToLookAt } from '../../db/webhooks/due.ts';
import { listOrganizationDeliveries } from '../../db/webhooks/log.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { SCHEDULE_MS } from '../support/deliveries.ts';
import {
  acceptedIds,
  eventually,
  type Organization,
  openOrganization,
  RETENTION,
  RULES,
  submitCommand,
} from '../support/organization.ts';
import { inLanes } from './lanes.ts';

/**
 * `node test/bench/partitions.ts [--requests 1000000] [--plans FILE]`: tries the partitions of
 * deploy/scale.md on the data of a year. It needs 2 KB of disk per request below TMPDIR.
 *
 * 1. Generates requests with batches, ledger entries, deliveries, and entitlements. The last 90 days
 *    still have their emails, and the last 30 days their attempts, as after the retention job.
 * 2. Attaches the tables as the first partitions of new ones, without a copy.
 * 3. Copies them into a partition for each month.
 * 4. Detaches, archives, and drops the oldest month.
 *
 * Prints the time and the locks of each step. After each of the first three steps, runs the service's
 * functions and prints their times, the pages that they read, and the partitions that they visited.
 * The plans go to FILE.
 */
const { values: OPTIONS } = parseArgs({
  options: {
    requests: { type: 'string', default: '1000000' },
    plans: { type: 'string' },
  },
});
const ROLES = new URL('../../db/migrations/roles.sql', import.meta.url);
const REQUESTS = Number(OPTIONS.requests);
const ORGANIZATIONS = 200;
const CHUNKS = 80;
const DAY_MS = 86_400_000;
const DIGITS = '0123456789abcdefghjkmnpqrstvwxyz';
const ROUNDS = 7;
const LANES = 4;
/** The doctor reads everything, so it does not run on more requests than these. */
const MOST_FOR_DOCTOR = 2_000_000;
const PAGE = { after: null, limit: 50 };
const ALWAYS = { since: null, until: null };

/** A table to partition by the time in a TypeID. */
interface Growing {
  readonly table: string;
  readonly key: string;
  readonly prefix: string;
  /** True if the rows without a key, the grants, stay in the default partition. */
  readonly hasDefault?: boolean;
}

const TABLES: readonly Growing[] = [
  { table: 'batches', key: 'id', prefix: 'bat' },
  { table: 'requests', key: 'id', prefix: 'req' },
  { table: 'webhook_deliveries', key: 'id', prefix: 'msg' },
  // With this key, the hold and the settlement of a request are in the same partition, and the
  // constraint ledger_entries_once stays.
  { table: 'ledger_entries', key: 'request_id', prefix: 'req', hasDefault: true },
];

const now = new Date();
const year = now.getUTCFullYear();
const month = now.getUTCMonth();
/** The months of the data, the current one last, and the three after them. */
const MONTHS = Array.from({ length: 13 }, (_, n) => monthOf(n - 12));
const NEXT_MONTHS = [1, 2, 3].map(monthOf);
const START = MONTHS[0]?.start ?? now;
const BOUND = NEXT_MONTHS[0]?.start ?? now;

interface Month {
  readonly name: string;
  readonly start: Date;
  readonly end: Date;
}

function monthOf(offset: number): Month {
  const start = new Date(Date.UTC(year, month + offset, 1));
  const end = new Date(Date.UTC(year, month + offset + 1, 1));
  return { name: start.toISOString().slice(0, 7).replace('-', '_'), start, end };
}

/** Returns the smallest id of a time. The first ten digits of a TypeID are its milliseconds. */
function boundary(prefix: string, at: Date): string {
  let ms = at.getTime();
  let digits = '';
  for (let n = 0; n < 10; n += 1) {
    digits = DIGITS.charAt(ms % 32) + digits;
    ms = Math.floor(ms / 32);
  }
  return `${prefix}_${digits}${'0'.repeat(16)}`;
}

/** The lines of the server's log since the last call of `measure`. */
const log: string[] = [];
const folder = await mkdtemp(join(tmpdir(), 'partitions-'));

async function configure(url: string): Promise<void> {
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  for (const setting of [
    `shared_buffers = '3GB'`,
    `max_wal_size = '2GB'`,
    `maintenance_work_mem = '1GB'`,
    `wal_level = minimal`,
    `max_wal_senders = 0`,
    `fsync = off`,
    `synchronous_commit = off`,
    `full_page_writes = off`,
    `autovacuum = off`,
  ]) {
    await sql.unsafe(`alter system set ${setting}`);
  }
  await sql.end();
}

async function main(url: string): Promise<void> {
  await migrate(url);
  const sql = postgres(url, { max: LANES + 1, onnotice: () => {} });
  const explaining = await createExplainer(sql, url);
  const pool = { poolSize: 1, applicationName: 'bench' };
  const db = openDatabase({ url, ...pool });
  const explained = openDatabase({ url: explaining, ...pool });
  const owners = await openOrganizations(db);
  await fill(sql, owners);
  const measured = new Map<string, Figures[]>();
  const trial = { sql, db, explained, subject: await findSubject(sql, owners) };
  await measure(trial, 'one table', measured);
  await attachOld(sql);
  await measure(trial, 'attached', measured);
  await copyMonths(sql);
  await measure(trial, 'months', measured);
  print(measured);
  await archive(sql, db);
  await db.close();
  await explained.close();
  await sql.end();
}

/** Runs one step, and prints its time and the locks that it holds at its end. */
async function step(
  sql: Sql,
  name: string,
  work: (tx: TransactionSql) => Promise<unknown>,
): Promise<void> {
  let begun = performance.now();
  let locks = '';
  await sql.begin(async (tx) => {
    await tx`set local lock_timeout = '5s'`;
    begun = performance.now();
    await work(tx);
    const held = await tx<{ mode: string; tables: string }[]>`
      select mode, string_agg(distinct relation::regclass::text, ', ') as tables
        from pg_locks l join pg_class c on c.oid = l.relation
       where pid = pg_backend_pid() and relkind in ('r', 'p') and relnamespace = 'public'::regnamespace
         and mode not in ('AccessShareLock', 'RowExclusiveLock') and not relation::regclass::text ~ '_20|_old'
       group by mode order by mode`;
    locks = held.map(({ mode, tables }) => `${mode}: ${tables}`).join('; ');
  });
  const ms = performance.now() - begun;
  console.log(`${name.padEnd(56)} ${ms.toFixed(0).padStart(8)} ms  ${locks}`);
}

// 1. The data

async function openOrganizations(db: Database): Promise<Organization[]> {
  const owners: Organization[] = [];
  for (let n = 0; n < ORGANIZATIONS; n += 1) {
    owners.push(await openOrganization(db, 1e12));
  }
  return owners;
}

/** Fills the tables with triggers off, so it also writes what triggers would maintain. */
async function fill(sql: Sql, owners: readonly Organization[]): Promise<void> {
  await sql`create table owners (place int primary key, id text not null)`;
  const ids = owners.map(({ organizationId }) => organizationId);
  await sql`insert into owners select n - 1, id from unnest(${ids}::text[]) with ordinality o (id, n)`;
  const indexes = await dropIndexes(sql);
  const batches = (REQUESTS / 50) * 6;
  const waiting = Array.from({ length: CHUNKS }, (_, chunk) => chunk);
  const firstOf = (chunk: number) => Math.floor((batches / 6 / CHUNKS) * chunk) * 6;
  await inLanes(waiting, LANES, (chunk) =>
    step(sql, `generate part ${chunk + 1} of ${CHUNKS}`, async (tx) => {
      await tx`set local session_replication_role = replica`;
      await tx`set local work_mem = '256MB'`;
      await tx.unsafe(plan(firstOf(chunk), firstOf(chunk + 1) - 1, batches));
      for (const statement of FILLING) await tx.unsafe(statement);
    }),
  );
  await step(sql, 'generate sums', async (tx) => {
    await tx`set local session_replication_role = replica`;
    await tx`set local work_mem = '512MB'`;
    for (const statement of SUMS) await tx.unsafe(statement);
  });
  await inLanes(indexes, LANES, (index) =>
    step(sql, `create ${index.name}`, (tx) => tx.unsafe(index.definition)),
  );
  await sql`vacuum analyze`;
}

/** Drops the indexes that are faster to create after the data. Returns them. */
async function dropIndexes(sql: Sql): Promise<Definition[]> {
  return await sql.begin(async (tx) => {
    const indexes: Definition[] = [];
    for (const growing of TABLES) indexes.push(...(await indexesOf(tx, growing)));
    const dropped = indexes.filter(({ isPerPartition }) => !isPerPartition);
    for (const { name } of dropped) await tx.unsafe(`drop index ${name}`);
    return dropped;
  });
}

/**
 * Plans the requests of some batches. Nine in ten requests are in bulks of 45. The last request of a
 * bulk repeats the one before it. A person is requested again after four months. The organizations
 * have a Zipf distribution. All times are evenly spread from `START` to an hour ago.
 */
function plan(first: number, last: number, batches: number): string {
  const end = new Date(Date.now() - 3_600_000);
  const spacingMs = (end.getTime() - START.getTime()) / batches;
  const digits = Array.from(
    { length: 10 },
    (_, n) => `substr('${DIGITS}', 1 + (ms >> ${45 - 5 * n} & 31)::int, 1)`,
  );
  return `
    create temporary table planned on commit drop as
    with batch as (
      select g, case g % 6 when 0 then 45 else 1 end as total,
             g / 6 * 50 + case g % 6 when 0 then 0 else 44 + g % 6 end as base,
             (${START.getTime()} + g * ${spacingMs})::bigint as ms,
             floor(${ORGANIZATIONS} ^ (g * 7919 % 100003 / 100003.0))::int - 1 as place,
             case when g % 60 = 0 then 'personal' when g % 60 = 6 then 'professional' else 'any' end as requested_type,
             case when g % 24 in (0, 1) then 'real-time' when g % 24 = 6 then 'batch' end as mode
        from generate_series(${first}::bigint, ${last}::bigint) g
    ), stamped as (
      select batch.*, o.id as organization_id, to_timestamp(ms / 1000.0) as created_at, ${digits.join(' || ')} as stamp
        from batch join owners o using (place)
    ), entry as (
      select *, base + p as number, p = 44 as again, base + least(p, 43) as person
        from stamped, generate_series(0, total - 1) p
    )
    select 'bat_' || stamp || lpad(g::text, 16, '0') as batch_id, organization_id, total, requested_type, mode, created_at,
           'req_' || stamp || lpad(number::text, 16, '0') as id, 'msg_' || stamp || lpad(number::text, 16, '0') as delivery_id,
           p as position, (1000000000 + person * 7368787 % ${REQUESTS * 0.3})::text as npi,
           case requested_type when 'personal' then 3 else 1 end as cost, outcome, outcome = 'completed' and again as replayed,
           created_at + (person % 60 + 5 + case when again then 1 else 0 end) * interval '1 second' as settled_at,
           case requested_type when 'personal' then 'personal' else 'professional' end as email_type,
           created_at < now() - interval '90 days' as forgotten, number
      from (select *, case when person * 104729 % 100 < 70 then 'completed'
                           when person * 104729 % 100 < 92 then 'not_found' else 'failed' end as outcome
              from entry) e
     order by number`;
}

const FILLING = [
  `insert into batches (id, organization_id, submitted_as, requested_type, total, completed_count, webhook_url, webhook_mode,
                        created_at, updated_at, deadline_at, admitted_at, started_at)
   select batch_id, organization_id, case total when 1 then 'single' else 'bulk' end, requested_type, total, total,
          case when mode is not null then 'https://hooks.example/' end, mode, created_at, created_at + interval '65 s',
          created_at + interval '15 min', created_at, created_at + interval '10 ms'
     from planned where position = 0`,
  `insert into requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, replayed, email, email_type,
                         email_last_validated_at, reason, accepted_at, deadline_at, started_at, settled_at, erased_at)
   select id, batch_id, organization_id, position, npi, requested_type, cost, outcome, replayed,
          case when found then 'person-' || npi || '@clinic.example' end, case when found then email_type end,
          case when found then created_at end, case outcome when 'completed' then null else 'no_source' end, created_at,
          created_at + interval '15 min', created_at + interval '50 ms', settled_at,
          case when outcome = 'completed' and forgotten then settled_at + interval '90 days' end
     from (select *, outcome = 'completed' and not forgotten as found from planned) p`,
  `insert into ledger_entries (organization_id, request_id, kind, amount, created_at)
   select organization_id, id, kind, cost, at
     from planned cross join lateral (values
       ('hold', created_at), (case when outcome = 'completed' and not replayed then 'charge' else 'release' end, settled_at)
     ) entry (kind, at)
    order by at, number`,
  `insert into entitlements (organization_id, npi, email_type, request_id, charged_at)
   select organization_id, npi, email_type, id, settled_at from planned where outcome = 'completed' and not replayed
       on conflict (organization_id, npi, email_type) do update
      set request_id = excluded.request_id, charged_at = excluded.charged_at`,
  `insert into webhook_deliveries (id, batch_id, request_id, organization_id, state, attempts, forgotten, created_at, decided_at)
   select delivery_id, batch_id, case mode when 'real-time' then id end, organization_id,
          case when number % 100 = 0 then 'failed' else 'delivered' end, n,
          case when created_at < now() - interval '30 days' then n else 0 end, created_at, created_at + interval '10 min'
     from planned, lateral (select case when number % 100 = 0 then 10 else 1 end) attempts (n)
    where mode = 'real-time' or (mode = 'batch' and position = 0)`,
  `insert into webhook_attempts (delivery_id, n, started_at, duration_ms, status_code)
   select d.id, n, d.created_at + n * interval '70 s', 40, case state when 'delivered' then 200 else 500 end
     from planned join webhook_deliveries d on d.id = delivery_id, generate_series(1, d.attempts) n
    where planned.created_at > now() - interval '30 days'`,
];

const SUMS = [
  `update ledger_entries set created_at = '${START.toISOString()}' where request_id is null`,
  `update credit_balances b set total = s.total, available = s.available, held = s.held, used = s.used
     from (select organization_id, -sum(granted) as total, sum(available) as available, sum(held) as held, sum(used) as used
             from ledger_entries group by organization_id) s
    where s.organization_id = b.organization_id`,
  `insert into daily_usage (organization_id, day, requested_type, found, replayed, not_found, failed, credits_charged)
   select organization_id, (settled_at at time zone 'UTC')::date, requested_type, count(*) filter (where credits_used > 0),
          count(*) filter (where replayed), count(*) filter (where status = 'not_found'),
          count(*) filter (where status = 'failed'), sum(credits_used)
     from requests group by 1, 2, 3`,
  `insert into sweeps (due_at, swept_at) values (now(), now() + interval '1 day')`,
];

// 2. Attaching

async function attachOld(sql: Sql): Promise<void> {
  console.log('\nattach the tables as first partitions');
  for (const { table, key, prefix, hasDefault } of TABLES) {
    const isOld = `${key} < '${boundary(prefix, BOUND)}'`;
    // PostgreSQL scans a table that it attaches, unless it can prove the partition from the check.
    const check = hasDefault ? `${key} is null or ${isOld}` : isOld;
    await step(sql, `${table}: add a check`, (tx) =>
      tx.unsafe(
        `alter table ${table} add constraint old_rows check (${check}) not valid`,
      ),
    );
    await step(sql, `${table}: validate the check`, (tx) =>
      tx.unsafe(`alter table ${table} validate constraint old_rows`),
    );
  }
  await step(sql, 'all tables: swap and attach', async (tx) => {
    await dropReferences(tx);
    for (const growing of TABLES) await swap(tx, growing);
    await tx.unsafe(await readFile(ROLES, 'utf8'));
  });
  // Autovacuum does not analyze a partitioned table, only its partitions.
  for (const { table } of TABLES) {
    await step(sql, `${table}: analyze`, (tx) => tx.unsafe(`analyze only ${table}`));
  }
}

/** Drops the foreign keys to the tables. A partition with referenced rows can't be detached. */
async function dropReferences(tx: TransactionSql): Promise<void> {
  const names = TABLES.map(({ table }) => table);
  const references = await tx<{ from: string; name: string }[]>`
    select conrelid::regclass::text as from, conname as name
      from pg_constraint where contype = 'f' and confrelid::regclass::text = any(${names})`;
  for (const { from, name } of references) {
    await tx.unsafe(`alter table ${from} drop constraint ${name}`);
  }
}

interface Definition {
  readonly name: string;
  readonly definition: string;
  /** True for a unique index or constraint without the key of the partitions. */
  readonly isPerPartition: boolean;
}

/** Reads the primary key, the unique constraints, and the foreign keys of a table. */
async function constraintsOf(tx: TransactionSql, { table, key }: Growing) {
  return await tx<Definition[]>`
    select conname as name, pg_get_constraintdef(c.oid) as definition, attnum <> all(conkey) and contype <> 'f' as "isPerPartition"
      from pg_constraint c join pg_attribute a on attrelid = conrelid and attname = ${key}
     where conrelid = ${table}::regclass and contype in ('p', 'u', 'f')`;
}

/** Reads the indexes of a table that belong to no constraint. */
async function indexesOf(tx: TransactionSql, { table, key }: Growing) {
  return await tx<Definition[]>`
    select indexrelid::regclass::text as name, pg_get_indexdef(indexrelid) as definition,
           indisunique and attnum <> all(indkey::int2[]) as "isPerPartition"
      from pg_index i join pg_attribute a on attrelid = indrelid and attname = ${key}
     where indrelid = ${table}::regclass
       and not exists (select from pg_constraint where conindid = indexrelid and conrelid = indrelid)`;
}

async function swap(tx: TransactionSql, growing: Growing): Promise<void> {
  const { table, prefix, hasDefault } = growing;
  const constraints = await constraintsOf(tx, growing);
  const indexes = await indexesOf(tx, growing);
  const triggers = await tx<Definition[]>`
    select tgname as name, pg_get_triggerdef(oid) as definition
      from pg_trigger where tgrelid = ${table}::regclass and not tgisinternal`;
  for (const { name } of triggers) await tx.unsafe(`drop trigger ${name} on ${table}`);
  await tx.unsafe(`alter table ${table} rename to ${table}_old`);
  const named = await tx<{ name: string }[]>`
    select indexrelid::regclass::text as name from pg_index where indrelid = ${`${table}_old`}::regclass`;
  for (const { name } of named)
    await tx.unsafe(`alter index ${name} rename to old_${name}`);

  await tx.unsafe(
    `create table ${table} (like ${table}_old including defaults including generated including constraints)
     partition by range (${growing.key})`,
  );
  await tx.unsafe(`alter table ${table} drop constraint old_rows, owner to npe_owner`);
  if (hasDefault) await moveIdentity(tx, table);
  for (const { name, definition, isPerPartition } of constraints) {
    if (!isPerPartition)
      await tx.unsafe(`alter table ${table} add constraint ${name} ${definition}`);
  }
  for (const { definition, isPerPartition } of indexes) {
    if (!isPerPartition) await tx.unsafe(definition);
  }
  await tx.unsafe(
    hasDefault
      ? `alter table ${table} attach partition ${table}_old default`
      : `alter table ${table} attach partition ${table}_old
           for values from (minvalue) to ('${boundary(prefix, BOUND)}')`,
  );
  for (const next of NEXT_MONTHS) {
    await tx.unsafe(
      `create table ${table}_${next.name} (like ${table}_old including all excluding identity)`,
    );
    await tx.unsafe(`alter table ${table}_${next.name} drop constraint old_rows`);
    await tx.unsafe(attachment(growing, next));
  }
  for (const { definition } of triggers) await tx.unsafe(definition);
}

function attachment({ table, prefix }: Growing, { name, start, end }: Month): string {
  return `alter table ${table} attach partition ${table}_${name}
    for values from ('${boundary(prefix, start)}') to ('${boundary(prefix, end)}')`;
}

/** Gives the identity of the ledger's ids to the new table, because a partition can't have one. */
async function moveIdentity(tx: TransactionSql, table: string): Promise<void> {
  const [sequence] = await tx<{ next: string }[]>`
    select last_value + 1 as next from ledger_entries_id_seq`;
  await tx.unsafe(`alter table ${table}_old alter id drop identity`);
  await tx.unsafe(
    `alter table ${table} alter id add generated always as identity
       (sequence name ledger_entries_id_seq start with ${sequence?.next})`,
  );
}

// 3. Months

async function copyMonths(sql: Sql): Promise<void> {
  console.log('\ncopy the old partitions into months');
  for (const growing of TABLES) {
    const { table } = growing;
    const begun = performance.now();
    await inLanes(MONTHS, LANES, (each) => copyMonth(sql, growing, each));
    const seconds = (performance.now() - begun) / 1000;
    console.log(`${table}: copied in ${seconds.toFixed(0)} s, ${LANES} months at a time`);
    await step(sql, `${table}: swap the old partition for months`, (tx) =>
      swapMonths(tx, growing),
    );
    // This frees the space for the copies of the next table.
    await step(sql, `${table}: drop the old partition`, (tx) =>
      tx.unsafe(`drop table ${table}_old`),
    );
  }
  await sql`vacuum analyze`;
}

/** Copies the rows of a month. Its check spares a scan when it is attached. */
async function copyMonth(sql: Sql, growing: Growing, { name, start, end }: Month) {
  const { table, key, prefix } = growing;
  const old = { ...growing, table: `${table}_old` };
  await sql.begin(async (tx) => {
    const target = `${table}_${name}`;
    const from = boundary(prefix, start);
    const to = boundary(prefix, end);
    await tx.unsafe(
      `create table ${target} (like ${table}_old including all excluding identity excluding indexes)`,
    );
    await tx.unsafe(`alter table ${target} drop constraint old_rows`);
    await tx.unsafe(
      `alter table ${target} add check (${key} is not null and ${key} >= '${from}' and ${key} < '${to}')`,
    );
    const columns = await tx<{ list: string }[]>`
      select string_agg(quote_ident(attname), ', ') as list from pg_attribute
       where attrelid = ${target}::regclass and attnum > 0 and attgenerated = ''`;
    const list = columns[0]?.list;
    await tx.unsafe(
      `insert into ${target} (${list}) select ${list} from ${table}_old
        where ${key} >= '${from}' and ${key} < '${to}' order by ${key}`,
    );
    for (const { definition } of await constraintsOf(tx, old)) {
      await tx.unsafe(`alter table ${target} add ${definition}`);
    }
    for (const { definition } of await indexesOf(tx, old)) {
      await tx.unsafe(definition.replace(/INDEX \w+ ON \S+/, `INDEX ON ${target}`));
    }
  });
}

async function swapMonths(tx: TransactionSql, growing: Growing): Promise<void> {
  const { table, key, hasDefault } = growing;
  await tx.unsafe(`alter table ${table} detach partition ${table}_old`);
  for (const each of MONTHS) await tx.unsafe(attachment(growing, each));
  if (!hasDefault) return;
  await tx.unsafe(
    `create table ${table}_rest (like ${table}_old including all excluding identity)`,
  );
  await tx.unsafe(`alter table ${table}_rest drop constraint old_rows`);
  await tx.unsafe(`alter table ${table}_rest add check (${key} is null)`);
  await tx.unsafe(
    `insert into ${table}_rest (id, organization_id, kind, amount, reference, created_at)
     select id, organization_id, kind, amount, reference, created_at from ${table}_old where ${key} is null`,
  );
  await tx.unsafe(`alter table ${table} attach partition ${table}_rest default`);
}

// 4. The archive

async function archive(sql: Sql, db: Database): Promise<void> {
  const oldest = MONTHS[0]?.name;
  console.log(`\ndetach, archive, and drop ${oldest}`);
  await doctor(db, 'before');
  for (const { table, hasDefault } of TABLES.toReversed()) {
    const partition = `${table}_${oldest}`;
    const concurrently = hasDefault ? '' : 'concurrently';
    const begun = performance.now();
    await sql.unsafe(
      `alter table ${table} detach partition ${partition} ${concurrently}`,
    );
    const detached = performance.now();
    const file = `${partition}.csv.gz`;
    await sql.unsafe(
      `copy (select * from ${partition}) to program 'gzip -1 > ${file}' (format csv, header)`,
    );
    const archived = performance.now();
    const [size] = await sql<{ mb: number; archived: number }[]>`
      select pg_total_relation_size(${partition}) / 1e6::float8 as mb,
             (pg_stat_file(${file})).size / 1e6::float8 as archived`;
    await sql.unsafe(`drop table ${partition}`);
    console.log(
      `${partition}: detached in ${(detached - begun).toFixed(0)} ms, archived in ` +
        `${((archived - detached) / 1000).toFixed(1)} s, dropped in ${(performance.now() - archived).toFixed(0)} ms; ` +
        `${size?.mb.toFixed(0)} MB became ${size?.archived.toFixed(0)} MB`,
    );
  }
  await doctor(db, 'after');
}

async function doctor(db: Database, when: string): Promise<void> {
  if (REQUESTS > MOST_FOR_DOCTOR) return;
  const begun = performance.now();
  const checks = await diagnose(db, { ...RULES, webhookScheduleMs: SCHEDULE_MS });
  const seconds = (performance.now() - begun) / 1000;
  const found = checks.filter(({ findings }) => findings > 0);
  console.log(
    `doctor ${when}: ${seconds.toFixed(1)} s`,
    found.map(({ code, findings }) => `${code} ${findings}`),
  );
}

// The service's functions

/** The organization that the calls ask about, and one of its bulks from half a year ago. */
interface Subject {
  readonly organization: Organization;
  readonly batchId: string;
  readonly requestId: string;
  readonly npi: string;
  /** Open requests, which `submit` adds. */
  readonly open: string[];
}

interface Trial {
  readonly sql: Sql;
  readonly db: Database;
  readonly explained: Database;
  readonly subject: Subject;
}

interface Figures {
  readonly layout: string;
  readonly ms: number;
  readonly pages: number;
  readonly partitions: number;
}

async function findSubject(sql: Sql, owners: readonly Organization[]): Promise<Subject> {
  const organization = owners[3];
  const middle = new Date((START.getTime() + Date.now()) / 2);
  const [request] = await sql<{ batchId: string; requestId: string; npi: string }[]>`
    select b.id as "batchId", r.id as "requestId", r.npi
      from batches b join requests r on r.batch_id = b.id and r.position = 10
     where b.organization_id = ${organization?.organizationId ?? ''} and b.total = 45 and b.webhook_mode = 'real-time'
       and b.created_at < ${middle} order by b.created_at desc limit 1`;
  if (!organization || !request) throw new Error('there are too few requests');
  return { organization, ...request, open: [] };
}

type Call = (db: Database, subject: Subject) => Promise<unknown>;

let people = 1_900_000_000;
const SUBMIT_RULES = { ...RULES, lookupTimeoutMs: 900_000 };

const CALLS: Readonly<Record<string, Call>> = {
  'submit a bulk of 60 with webhooks': async (db, { organization, open }) => {
    const npis = Array.from({ length: 60 }, () => String(people++));
    const webhook = { url: 'https://hooks.example/', mode: 'real-time' } as const;
    const command = submitCommand(organization, { npis, webhook });
    open.push(...acceptedIds(await submit(db, command, SUBMIT_RULES)).requestIds);
  },
  'settle a request': (db, { open }) =>
    settle(db, open.pop() ?? '', 'finished', 'no_source', SUBMIT_RULES),
  'poll a request': (db, { organization: { organizationId }, requestId }) =>
    findEnvelope(db, { organizationId, requestId }),
  'poll a request, only its state': (
    db,
    { organization: { organizationId }, requestId },
  ) => findEnvelopeState(db, { organizationId, requestId }),
  'poll a batch of 45': (db, { organization: { organizationId }, batchId }) =>
    findEnvelope(db, { organizationId, batchId }),
  'find replays of 60 NPIs': (db, { organization: { organizationId }, npi }) => {
    const first = Number(npi);
    const npis = Array.from({ length: 60 }, (_, n) => String(first + n));
    const asked = { organizationId, npis, requestedType: 'any', lookupId: null } as const;
    return transaction(db, (tx) =>
      findKnownEmails(tx, { ...asked, at: new Date() }, RULES),
    );
  },
  'list batches': (db, { organization: { organizationId } }) =>
    listBatches(
      db,
      organizationId,
      { ...ALWAYS, status: null, npi: null, keyId: null },
      PAGE,
    ),
  'list batches, half a year ago': (db, { organization: { organizationId }, batchId }) =>
    listBatches(
      db,
      organizationId,
      { ...ALWAYS, status: null, npi: null, keyId: null },
      { after: batchId, limit: 50 },
    ),
  'list batches with an NPI': (db, { organization: { organizationId }, npi }) =>
    listBatches(db, organizationId, { ...ALWAYS, status: null, npi, keyId: null }, PAGE),
  'list deliveries': (db, { organization: { organizationId } }) =>
    listOrganizationDeliveries(db, organizationId, { ...ALWAYS, status: null }, PAGE),
  'list the ledger': (db, { organization: { organizationId } }) =>
    listLedger(db, organizationId, { ...ALWAYS, after: null, limit: 50 }),
  'usage of a month, one organization': (db, { organization: { organizationId } }) =>
    readUsage(db, organizationId, monthOf(-2).start, monthOf(-2).end),
  'usage of a month, all organizations': (db) =>
    readUsage(db, null, monthOf(-2).start, monthOf(-2).end),
  'sweep: overdue requests': (db) => listOverdueOwners(db),
  'sweep: batches to start': (db) => listToStart(db, 1000, 100),
  'sweep: batches in progress': (db) => claimUnfinished(db, 60_000, 100),
  'sweep: deliveries': (db) => listDeliveriesToLookAt(db, 60_000, 60_000, 100),
  metrics: (db) => readStats(db, { sources: [], webhookScheduleMs: SCHEDULE_MS }),
  retention: (db) => forgetOld(db, { ...RETENTION, resultsMs: 90 * DAY_MS }),
  'export the data about an NPI': (db, { npi }) => exportSubject(db, { npi }),
  doctor: (db) => diagnose(db, { ...RULES, webhookScheduleMs: SCHEDULE_MS }),
};

/** Creates a user whose statements the server logs with their plans. @returns its URL */
async function createExplainer(sql: Sql, url: string): Promise<string> {
  await sql.unsafe(`
    create role explainer superuser login password 'explainer';
    alter role explainer set session_preload_libraries = 'auto_explain';
    alter role explainer set auto_explain.log_min_duration = 0;
    alter role explainer set auto_explain.log_analyze = on;
    alter role explainer set auto_explain.log_buffers = on;
    alter role explainer set auto_explain.log_nested_statements = on`);
  const explaining = new URL(url);
  explaining.username = 'explainer';
  explaining.password = 'explainer';
  return explaining.href;
}

async function measure(
  { sql, db, explained, subject }: Trial,
  layout: string,
  measured: Map<string, Figures[]>,
): Promise<void> {
  console.log(`\nmeasure: ${layout}`);
  for (const [name, call] of Object.entries(CALLS)) {
    const isSlow = name === 'doctor';
    if (isSlow && REQUESTS > MOST_FOR_DOCTOR) continue;
    const rounds = isSlow ? 1 : ROUNDS;
    const ms = await timeOf(rounds, () => call(db, subject));
    // From the sixth time on, PostgreSQL may use a plan without the values of parameters.
    await timeOf(rounds - 1, () => call(explained, subject));
    await flush(sql);
    log.length = 0;
    await call(explained, subject);
    await flush(sql);
    const figures = { layout, ms, ...readLog() };
    measured.set(name, [...(measured.get(name) ?? []), figures]);
    if (OPTIONS.plans !== undefined)
      await appendFile(OPTIONS.plans, `## ${name}, ${layout}\n\n${log.join('\n')}\n\n`);
    console.log(`  ${name}: ${ms.toFixed(1)} ms, ${figures.pages} pages`);
  }
}

/** Does the work several times. @returns the median of the times in milliseconds */
async function timeOf(rounds: number, work: () => Promise<unknown>): Promise<number> {
  const times: number[] = [];
  for (let n = 0; n < rounds; n += 1) {
    const begun = performance.now();
    await work();
    times.push(performance.now() - begun);
  }
  times.sort((a, b) => a - b);
  return times[Math.floor(rounds / 2)] ?? 0;
}

/** Waits until the server's log has all that was logged before. */
async function flush(sql: Sql): Promise<void> {
  const mark = `flushed_${newId('req')}`;
  await sql.unsafe(`do $$ begin raise log '${mark}'; end $$`);
  await eventually(async () => log.some((line) => line.includes(mark)) || null);
}

/**
 * Adds up the pages of the logged plans, from the first line of buffers in each plan, which includes
 * those of its parts. Counts the partitions that were read.
 */
function readLog(): { readonly pages: number; readonly partitions: number } {
  let pages = 0;
  let isCounted = true;
  const partitions = new Set<string>();
  for (const line of log) {
    if (/LOG: {2}duration: .* plan:$/.test(line)) isCounted = false;
    const buffers = /^\s*Buffers: (shared.*)$/.exec(line)?.[1];
    if (buffers && !isCounted) {
      isCounted = true;
      for (const [, n] of buffers.matchAll(/(?:hit|read)=(\d+)/g)) pages += Number(n);
    }
    const visited = / on (\w+_(?:20\d\d_\d\d|old|rest)) .*\(actual/.exec(line)?.[1];
    if (visited) partitions.add(visited);
  }
  return { pages, partitions: partitions.size };
}

function print(measured: ReadonlyMap<string, readonly Figures[]>): void {
  console.log(
    `\n${'median ms, pages, partitions'.padEnd(38)} one table         attached          months`,
  );
  for (const [name, layouts] of measured) {
    const cells = layouts.map(({ ms, pages, partitions }) =>
      `${ms.toFixed(1)}, ${pages}, ${partitions}`.padEnd(18),
    );
    console.log(name.padEnd(38), cells.join(''));
  }
}

// PostgreSQL may run as another user, which must be able to enter the folder.
await chmod(folder, 0o755);
const onLog = (line: string) => log.push(line);
let server = await startPostgres({ dataDir: join(folder, 'data'), onLog });
try {
  await configure(server.url);
  await server.stop();
  server = await startPostgres({ dataDir: join(folder, 'data'), onLog });
  await main(server.url);
} finally {
  await server.stop();
  await rm(folder, { recursive: true, force: true });
}
process.exit();
