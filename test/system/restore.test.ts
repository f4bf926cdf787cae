import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Client, Connection } from '@temporalio/client';
import test from 'ava';
import { openDatabase } from '../../db/connection/client.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import {
  SECRET_KEYS,
  SECRETS_KEY,
  temporaryFolder,
  testSetting,
  withSql,
} from '../support/database.ts';
import { auditLedger } from '../support/ledger.ts';
import {
  createCaller,
  eventually,
  openOrganization,
  openTestKey,
  RULES,
} from '../support/organization.ts';
import { runProgram, startApiProcess, workerProcesses } from '../support/programs.ts';
import { hasPython } from '../support/python.ts';
import { TOOLS } from '../support/tools.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Makes a backup under load with the script of deploy/container/, restores it into an empty server
// with the other script, and starts the service there.

const SCRIPTS = fileURLToPath(new URL('../../deploy/container/', import.meta.url));
const TASK_QUEUE = `enrichment-${randomBytes(4).toString('hex')}`;
const USERS = [
  'npe_migrate_1',
  'npe_api_1',
  'npe_worker_1',
  'npe_operator_1',
  'temporal',
];
/** A sandbox request with this NPI is refunded. */
const NOT_FOUND = '2000000044';
/** NPIs of sandbox requests that are charged. */
const FOUND = ordinaryNpis('found', 3000);

type Server = Awaited<ReturnType<typeof startPostgres>>;

/** The service on one server of PostgreSQL, with the users of production. */
function serviceOn({ url }: Server, path: string) {
  const server = new URL(url);
  const urlOf = (user: string) =>
    `postgres://${user}:secret-${user}@${server.host}/enrichment`;
  const env = {
    ...process.env,
    PATH: path,
    PGHOST: server.hostname,
    PGPORT: server.port,
    PGUSER: server.username,
    PGPASSWORD: server.password,
    PGOPTIONS: USERS.map((user) => `-c npe.${user}=secret-${user}`).join(' '),
  };
  const temporal = { TEMPORAL_ADDRESS: testSetting('TEST_TEMPORAL_ADDRESS'), TASK_QUEUE };
  const superuser = new URL(url);
  superuser.pathname = '/enrichment';
  return {
    url: superuser.href,
    script: (name: string, ...args: string[]) =>
      promisify(execFile)(join(SCRIPTS, name), args, { env }),
    // The owner of the database needs no more rights for a backup.
    backUp: (file: string) => {
      const owner = { PGUSER: 'npe_migrate_1', PGPASSWORD: 'secret-npe_migrate_1' };
      return promisify(execFile)(join(SCRIPTS, 'backup.sh'), [file], {
        env: { ...env, ...owner },
      });
    },
    migrate: () =>
      runProgram('migrate', [], { env: { DATABASE_URL: urlOf('npe_migrate_1') } }),
    startApi: () => startApiProcess(urlOf('npe_api_1'), temporal),
    workerEnvironment: {
      DATABASE_URL: urlOf('npe_worker_1'),
      SECRETS_KEY,
      WORKFLOW_BUNDLE: testSetting('TEST_WORKFLOW_BUNDLE'),
      ...temporal,
    },
    doctor: () =>
      runProgram('operator', ['doctor'], {
        env: { DATABASE_URL: urlOf('npe_operator_1'), ...temporal },
      }),
  };
}

/** Reads the ledger and the balances. */
function readMoney(url: string) {
  return withSql(url, async (sql) => {
    const entries = await sql`
      select id, organization_id, request_id, kind, amount::int from ledger_entries order by id`;
    const balances = await sql<{ id: string; total: number; held: number }[]>`
      select organization_id as id, total::int, held::int from credit_balances order by 1`;
    const ids = balances.map(({ id }) => id);
    return { entries, balances, faults: await auditLedger(sql, ids, RULES.replayMs) };
  });
}

/** Makes an organization, whose sandbox gets the load. */
async function openSandbox(url: string) {
  const options = { url, poolSize: 1, applicationName: 'test', secretKeys: SECRET_KEYS };
  const db = openDatabase(options);
  try {
    return await openTestKey(db, await openOrganization(db, 500));
  } finally {
    await db.close();
  }
}

/** Submits batches all the time, until `stop` is called. */
function startLoad(baseUrl: string, apiKey: string) {
  const client = createCaller(baseUrl, apiKey);
  const accepted: string[] = [];
  const npis = FOUND.values();
  let isRunning = true;
  const submitting = [undefined, 'slow', undefined, 'slow'].map(async (outcome) => {
    const headers = outcome === undefined ? undefined : { 'test-outcome': outcome };
    while (isRunning) {
      const next = [npis.next().value, npis.next().value, NOT_FOUND];
      const { status, json } = await client.bulk({ npis: next }, headers);
      if (status === 202) accepted.push(json.batch_id);
    }
  });
  return {
    accepted,
    more: (count: number) => {
      const enough = accepted.length + count;
      return eventually(async () => accepted.length > enough || null);
    },
    stop: async () => {
      isRunning = false;
      await Promise.all(submitting);
    },
  };
}

/** Waits until an organization has no running workflow. @returns their number */
async function countOpen(organizationId: string): Promise<number> {
  const address = testSetting('TEST_TEMPORAL_ADDRESS');
  const connection = await Connection.connect({ address });
  try {
    const query = `OrganizationId = "${organizationId}" AND ExecutionStatus = "Running"`;
    return await eventually(async () => {
      const { count } = await new Client({ connection }).workflow.count(query);
      return count === 0 ? count : null;
    });
  } finally {
    await connection.close();
  }
}

const withPython = (await hasPython()) ? test : test.skip;

withPython('a backup made under load restores into an empty server', async (t) => {
  t.timeout(900_000);
  const path = [await TOOLS.postgresqlClients(), process.env.PATH].join(delimiter);
  const file = join(temporaryFolder(t.teardown), 'enrichment.dump');
  const workers = workerProcesses();
  t.teardown(workers.stop);

  const lost = await startPostgres({});
  t.teardown(lost.stop);
  const before = serviceOn(lost, path);
  await before.script('databases.sh');
  t.is((await before.migrate()).code, 0);
  const { apiKey, organizationId } = await openSandbox(before.url);
  const firstApi = await before.startApi();
  t.teardown(firstApi.stop);
  const firstWorker = await workers.start(before);
  const load = startLoad(firstApi.url, apiKey);
  await load.more(20);
  const acceptedBefore = [...load.accepted];
  await before.backUp(file);
  const [noted] = await withSql(
    before.url,
    (sql) => sql`select ended_at > (select min(created_at) from batches) as "isNoted"
                   from routines where kind = 'backup'`,
  );
  t.true(noted?.isNoted);
  await load.more(20);
  // Temporal must know a batch that the backup lacks.
  await eventually(async () => {
    const [later] = await withSql(
      before.url,
      (sql) => sql`
        select exists (
          select from batches
           where started_at is not null
             and created_at > (select ended_at from routines where kind = 'backup')) as "isStarted"`,
    );
    return later?.isStarted || null;
  });
  await load.stop();
  const spent = await readMoney(before.url);
  await firstApi.kill();
  await firstWorker.stop();
  await lost.stop();

  const empty = await startPostgres({});
  t.teardown(empty.stop);
  const after = serviceOn(empty, path);
  await after.script('restore.sh', file);
  t.is((await after.migrate()).code, 0);
  const [access] = await withSql(
    after.url,
    (sql) =>
      sql`select has_database_privilege('public', 'enrichment', 'connect') as open`,
  );
  t.false(access?.open);
  const restored = await readMoney(after.url);
  t.deepEqual(restored.faults, []);
  t.deepEqual(
    restored.balances.map(({ total }) => total),
    spent.balances.map(({ total }) => total),
  );
  t.true(restored.balances.some(({ held }) => held > 0));
  const known = new Set(spent.entries.map((entry) => JSON.stringify(entry)));
  t.deepEqual(
    restored.entries.filter((entry) => !known.has(JSON.stringify(entry))),
    [],
  );

  const api = await after.startApi();
  t.teardown(api.stop);
  await workers.start(after);
  const client = createCaller(api.url, apiKey);
  for (const batchId of acceptedBefore) await client.completed(batchId);
  const { json } = await client.bulk({ npis: FOUND.slice(-2) });
  t.is((await client.completed(json.batch_id)).data.length, 2);
  // Temporal still knows the batches that were accepted after the backup.
  const { stdout } = await eventually(async () => {
    const ended = await after.doctor();
    const codes = [...ended.stdout.matchAll(/^([a-z_]+): /gm)].map(([, code]) => code);
    return codes.join() === 'batch_lost' ? ended : null;
  });
  t.true(stdout.includes(` of ${organizationId} at `), stdout);
  // The workflows of batches that only Temporal still knows end, too.
  t.is(await countOpen(organizationId), 0);
  const settled = await readMoney(after.url);
  t.deepEqual(settled.faults, []);
  t.true(settled.balances.every(({ held }) => held === 0));
  await t.throwsAsync(after.script('restore.sh', file), {
    message: /has tables\. Nothing was changed/,
  });
});
