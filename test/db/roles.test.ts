import { randomBytes } from 'node:crypto';
import test from 'ava';
import postgres, { type Sql } from 'postgres';
import { revokeKey } from '../../db/accounts/keys.ts';
import { openDatabase } from '../../db/connection/client.ts';
import { OperatorProblem } from '../../db/connection/errors.ts';
import { migrate } from '../../db/operations/migrate.ts';
import { noteHome } from '../../db/requests/outbox.ts';
import { submit } from '../../db/requests/submit.ts';
import {
  freshDatabase,
  openEmptyDatabase,
  type TestDatabase,
  withSql,
} from '../support/database.ts';
import {
  acceptedIds,
  BY,
  openOrganization,
  RULES,
  submitCommand,
} from '../support/organization.ts';

const { db, sql, url } = freshDatabase(test);

/**
 * Makes a user with the rights of these roles for one test, connects as it, and drops it
 * afterwards.
 */
async function withUser<T>(
  roles: readonly string[],
  databaseUrl: string,
  use: (its: Sql, itsUrl: string, name: string) => Promise<T>,
): Promise<T> {
  const name = `test_user_${randomBytes(6).toString('hex')}`;
  return await withSql(databaseUrl, async (admin) => {
    await admin.unsafe(`create user ${name} password '${name}'`);
    for (const role of roles) await admin.unsafe(`grant ${role} to ${name}`);
    const itsUrl = new URL(databaseUrl);
    itsUrl.username = name;
    itsUrl.password = name;
    try {
      return await withSql(itsUrl.href, (its) => use(its, itsUrl.href, name));
    } finally {
      await admin.unsafe(`drop owned by ${name} cascade`);
      await admin.unsafe(`drop user ${name}`);
    }
  });
}

async function own({ sql, url }: TestDatabase, user: string): Promise<void> {
  await sql.unsafe(`alter database ${new URL(url).pathname.slice(1)} owner to ${user}`);
}

const TAMPERINGS: Readonly<Record<string, string>> = {
  'a balance without an entry':
    'update credit_balances set total = total + 1000, available = available + 1000',
  'a balance by a trigger function': `
    create temp table forged as select organization_id, -1000::bigint as granted, 1000::bigint as available,
      0::bigint as held, 0::bigint as used from credit_balances with no data;
    create trigger forged after insert on forged referencing new table as added
      for each statement execute function apply_ledger_entries();`,
  'the trigger of the ledger switched off':
    'alter table ledger_entries disable trigger user',
  'the triggers of a session switched off': 'set session_replication_role = replica',
  'a charge given back': `insert into ledger_entries (organization_id, request_id, kind, amount)
    select organization_id, id, 'release', cost from requests`,
  'a charge given back by a trigger of one’s own': `create temp table forged (n int);
    create function pg_temp.forge() returns trigger language plpgsql as $$ begin
      insert into ledger_entries (organization_id, request_id, kind, amount)
      select organization_id, id, 'release', cost from requests;
      return null;
    end $$;
    create trigger forge after insert on forged for each row execute function pg_temp.forge();
    insert into forged values (1)`,
  'entries by a trigger function': `create temp table requested (like requests);
    create trigger forged after insert on requested referencing new table as changed
      for each statement execute function count_settled_requests();`,
  'usage changed': 'update daily_usage set credits_charged = 0',
  'usage by a trigger function': `create temp table settled (like requests);
    create trigger forged after insert on settled referencing new table as changed
      for each statement execute function sum_settled_requests();`,
  'an entry rewritten': 'update ledger_entries set amount = 1',
  'entries deleted': 'delete from ledger_entries',
  'the ledger truncated': 'truncate ledger_entries',
  'the audit log truncated': 'truncate audit_log',
  'an audit entry rewritten': "update audit_log set actor = 'somebody else'",
  'audit entries deleted': 'delete from audit_log',
  'entitlements deleted': 'delete from entitlements',
  'the price of a request': 'update requests set cost = 0',
  'a request deleted': 'delete from requests',
  'the role of a key': "update api_keys set role = 'full'",
  'a key moved': 'update api_keys set organization_id = organization_id',
  'the owner taken for oneself': 'set role npe_owner',
};
const BY_OPERATORS_ALONE: Readonly<Record<string, string>> = {
  'credits out of nothing': `insert into ledger_entries (organization_id, kind, amount)
    select id, 'grant', 1000 from organizations`,
  'a key of one’s own': 'update api_keys set revoked_at = null',
  'a hold settled': 'select settle_hold(id) from requests',
  'a balance made anew': 'select recompute_balance(id) from organizations',
  'the audit log read': 'select * from audit_log',
};
const BY_NO_API: Readonly<Record<string, string>> = {
  'an organization renamed': "update organizations set name = 'somebody else'",
  'suspended webhooks resumed': 'update organizations set webhooks_suspended = false',
  'a higher rate limit': 'update organizations set requests_per_minute = 100000',
  'a receiver unblocked': 'delete from webhook_blocks',
  'a person looked up': 'select * from email_checks',
  'a result given': "update requests set status = 'not_found', settled_at = now()",
};

for (const [role, forbidden] of [
  ['npe_api', { ...TAMPERINGS, ...BY_OPERATORS_ALONE, ...BY_NO_API }],
  ['npe_worker', { ...TAMPERINGS, ...BY_OPERATORS_ALONE }],
  ['npe_operator', TAMPERINGS],
] as const) {
  test(`the database role ${role} cannot forge credits or change the audit log`, async (t) => {
    const organization = await openOrganization(db, 10);
    const command = submitCommand(organization, { npis: ['2000000010'] });
    acceptedIds(await submit(db, command, { ...RULES, replayMs: 0 }));
    await revokeKey(db, BY, organization.keyId);
    const books = () => sql`
      select (select jsonb_agg(b order by organization_id) from credit_balances b
               where organization_id = ${organization.organizationId}) as balances,
             (select jsonb_agg(l order by id) from ledger_entries l
               where organization_id = ${organization.organizationId}) as entries`;
    const before = await books();
    await withUser([role], url, async (its) => {
      for (const [what, statement] of Object.entries(forbidden)) {
        const error = await t.throwsAsync(
          its.unsafe(statement).simple(),
          undefined,
          what,
        );
        t.is(
          error instanceof postgres.PostgresError && error.code,
          '42501',
          `${what}: ${error?.message}`,
        );
      }
      // A temporary table shadows ours.
      const entitled = its.unsafe(`
        create temp table requests as
          select id, organization_id, npi, 'personal' as email_type, cost as credits_used from public.requests;
        insert into entitlements select organization_id, npi, email_type, id, now() from requests`);
      await t.throwsAsync(entitled.simple(), {
        message: /an entitlement must have a charge/,
      });
    });
    t.deepEqual(await books(), before);
  });
}

test('operators write employer data, workers read it, and the API has no access', async (t) => {
  const rights = async (role: string) => {
    const rows = await sql`
      select relname, privilege from unnest(array['clinician_practices', 'employer_domains']) relname,
             unnest(array['select', 'insert', 'update', 'delete']) privilege
       where has_table_privilege(${role}, relname, privilege)`;
    return rows.length;
  };
  t.deepEqual(
    [await rights('npe_operator'), await rights('npe_worker'), await rights('npe_api')],
    [8, 2, 0],
  );
});

test('viewers read no address, secret, or URL, and write nothing', async (t) => {
  const sensitive = await sql`
    select relname || '.' || attname as name
      from pg_class c join pg_attribute a on a.attrelid = c.oid
     where relnamespace = 'public'::regnamespace and relkind in ('r', 'v') and attnum > 0
       and attname ~ '(^|_)(email|secret|hash|url|excerpt|custom_data|response|content)$'
       and has_column_privilege('npe_viewer', c.oid, attnum, 'select')`;
  t.deepEqual([...sensitive], []);
  const readable = await sql`
    select name from unnest(array[
             'candidates', 'stored_emails', 'vendor_profiles', 'provider_endpoints', 'suppressions',
             'secret_keys', 'idempotency_keys', 'uploads', 'upload_parts']) name
     where has_any_column_privilege('npe_viewer', name, 'select')`;
  t.deepEqual([...readable], []);
  const writable = await sql`
    select relname from pg_class c
     where relnamespace = 'public'::regnamespace and relkind in ('r', 'v')
       and (has_any_column_privilege('npe_viewer', c.oid, 'insert, update')
            or has_table_privilege('npe_viewer', c.oid, 'delete, truncate'))`;
  t.deepEqual([...writable], []);
  const callable = await sql`
    select proname from pg_proc
     where pronamespace = 'public'::regnamespace and prosecdef
       and has_function_privilege('npe_viewer', oid, 'execute')`;
  t.deepEqual([...callable], []);
});

test('an API process may record its Temporal namespace and change it later', async (t) => {
  await withUser(['npe_api'], url, async (_its, itsUrl) => {
    const its = openDatabase({ url: itsUrl, poolSize: 1, applicationName: 'test' });
    for (const namespace of ['here', 'there']) await noteHome(its, namespace);
    await its.close();
  });
  t.deepEqual([...(await sql`select namespace from sweeps`)], [{ namespace: 'there' }]);
});

test('at least one database role may read each table', async (t) => {
  const forgotten = await sql`
    select relname from pg_class c
     where relnamespace = 'public'::regnamespace and relkind in ('r', 'v')
       and not exists (
         select from unnest(array['npe_api', 'npe_worker', 'npe_operator']) role
          where has_any_column_privilege(role, c.oid, 'select'))`;
  t.deepEqual([...forgotten], []);
});

test('the database sets the time and user of an audit entry itself', async (t) => {
  const [entry] = await sql`
    insert into audit_log (at, db_user, actor, action, reason)
    values ('2020-01-01', 'eve', 'eve', 'x', 'x')
    returning db_user, now() - at < interval '1 hour' as "isNow"`;
  t.deepEqual({ ...entry }, { db_user: 'postgres', isNow: true });
});

test('not even the owner of the tables can change the ledger or the audit log', async (t) => {
  await openOrganization(db, 5);
  for (const table of ['ledger_entries', 'audit_log']) {
    for (const statement of [
      `delete from ${table}`,
      `update ${table} set organization_id = organization_id`,
    ]) {
      await t.throwsAsync(sql.unsafe(statement), { message: /append-only/ }, statement);
    }
    await t.throwsAsync(sql.unsafe(`truncate ${table} cascade`), {
      message: /append-only/,
    });
  }
});

test('migrate only needs to own its database and be a member of npe_owner', async (t) => {
  await using database = await openEmptyDatabase();
  await withUser(['npe_owner'], database.url, async (its, itsUrl, name) => {
    await own(database, name);
    await migrate(itsUrl);
    await migrate(itsUrl);
    const [{ owner } = {}] = await its`
      select relowner::regrole::text as owner from pg_class where relname = 'ledger_entries'`;
    t.is(owner, 'npe_owner');
    await own(database, 'current_user');
  });
});

test('if migrate may not set up the roles, its error contains the grant to run', async (t) => {
  await using database = await openEmptyDatabase();
  await withUser([], database.url, async (_its, itsUrl, name) => {
    await own(database, name);
    const error = await t.throwsAsync(migrate(itsUrl), { instanceOf: OperatorProblem });
    t.true(error?.message.includes(`grant npe_owner to ${name};`), error?.message);
    await own(database, 'current_user');
  });
});
