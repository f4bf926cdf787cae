import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { noteApi } from '../../db/operations/workers.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { launch } from '../../deploy/local/processes.ts';
import type { Temporal } from '../../deploy/local/temporal.ts';
import { TASK_QUEUE } from '../../workflows/messages.ts';
import { leftOver } from '../support/all-ended.ts';
import { asRole, temporaryFolder, withSql } from '../support/database.ts';
import { test } from '../support/on-server.ts';
import { eventually } from '../support/organization.ts';
import { runProgram, workerProcesses } from '../support/programs.ts';
import { startStack } from '../support/stack.ts';
import { startTemporalServer } from '../support/temporal-server.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests the service on a cluster like production's: Temporal's server on PostgreSQL, with four
// history shards.

const FOUND = 20;
const NOT_FOUND = 10;
const UP = 'Ctrl-C stops everything this started.';

test("killing Temporal's server during a batch loses nothing and repeats no charge", async (t) => {
  const postgres = await startPostgres({});
  t.teardown(() => postgres.stop());
  const options = {
    namespace: 'default',
    postgresUrl: postgres.url,
    dir: temporaryFolder(t.teardown),
  };
  let server: Temporal = await startTemporalServer(options);
  t.teardown(() => server.stop());
  const stack = await startStack({
    lookupTimeoutMs: 300_000,
    simulatorSpeed: 0.3,
    // The rate spreads the lookups over seconds, so that most are open when five have completed.
    rocketReach: { rates: ['4/1s'] },
    elsewhere: { temporalAddress: server.address, taskQueue: TASK_QUEUE },
  });
  t.teardown(() => stack.stop());
  const workers = workerProcesses();
  t.teardown(() => workers.stop());
  await workers.start(stack);
  const client = await stack.organization(100);
  const webhook = { url: `${stack.receiver.url}/cluster`, mode: 'real-time' };
  const npis = [...ordinaryNpis('found', FOUND), ...ordinaryNpis('not_found', NOT_FOUND)];
  const { json } = await client.bulk({ npis, webhook });
  const completed = async () => (await client.batch(json.batch_id)).batch.completed_count;
  await eventually(async () => ((await completed()) >= 5 ? true : null));
  process.kill(server.pid, 'SIGKILL');
  t.is(await server.exited, 'signal SIGKILL');
  t.true((await completed()) < npis.length, 'killed in the middle');
  // The API still accepts requests.
  const [later = ''] = ordinaryNpis('found', 1, 500_000);
  const meanwhile = await client.single({ npi: later, webhook });
  t.is(meanwhile.status, 202);

  server = await startTemporalServer({ ...options, port: server.port });
  const envelope = await client.completed(json.batch_id);
  t.deepEqual(
    envelope.data.map(({ npi, status }) => [npi, status]),
    npis.map((npi, i) => [npi, i < FOUND ? 'completed' : 'not_found']),
  );
  t.is((await client.completed(meanwhile.json.batch_id)).data[0]?.status, 'completed');
  for (const npi of [...npis, later]) {
    const bought = stack.simulator
      .calls()
      .filter(({ subject }) => subject === npi).length;
    t.is(bought, 1, `${npi} was looked up ${bought} times`);
  }
  for (const { batch_id } of [json, meanwhile.json]) {
    await eventually(
      async () => (await client.batch(batch_id)).webhook?.status === 'delivered' || null,
    );
  }
  const told = stack.receiver
    .deliveries()
    .map(({ body }) => JSON.parse(body).data[0].request_id);
  t.is(new Set(told).size, npis.length + 1);
  t.deepEqual(await client.credits(), {
    balance: 99 - FOUND,
    total: 100,
    used: FOUND + 1,
  });
  t.deepEqual(await leftOver(stack), []);
  // The API of a stack does not report itself as running, so the test does.
  await noteApi(stack.db, { id: 'its API', namespace: 'default', taskQueue: TASK_QUEUE });
  const env = {
    DATABASE_URL: asRole(stack.databaseUrl, 'operator'),
    TEMPORAL_ADDRESS: server.address,
  };
  const doctor = await runProgram('operator', ['doctor'], { env });
  t.is(doctor.code, 0, doctor.stdout);
  const [row] = await withSql(
    postgres.url.replace(/postgres$/, 'temporal'),
    (sql) => sql`select count(*)::int as shards from shards`,
  );
  t.is(row?.shards, 4);
});

test("npm start runs the demo on a given cluster of Temporal's real server", async (t) => {
  const folder = temporaryFolder(t.teardown);
  const postgres = await startPostgres({});
  t.teardown(() => postgres.stop());
  const server = await startTemporalServer({
    namespace: 'default',
    postgresUrl: postgres.url,
    dir: temporaryFolder(t.teardown),
  });
  t.teardown(() => server.stop());
  const programOf = (path: string) =>
    fileURLToPath(new URL(`../../deploy/${path}`, import.meta.url));
  const { PATH, HOME, XDG_CACHE_HOME } = process.env;
  const env = { PATH, HOME, XDG_CACHE_HOME, TEMPORAL_ADDRESS: server.address };
  let output = '';
  const start = launch({
    name: 'npm start',
    command: process.execPath,
    args: [programOf('local/start.ts'), '--port', '0'],
    ...{ cwd: folder, env },
    onLine: (line) => (output += `${line}\n`),
  });
  t.teardown(() => start.stop());
  await eventually(async () => {
    if (start.ending() !== undefined) throw new Error(`it ended: ${output}`);
    return output.includes(UP) || null;
  });
  t.true(output.includes('Balance: 1000 before, 988 after'));
  const args = [programOf('operator.ts'), 'doctor'];
  const { stdout } = await promisify(execFile)(process.execPath, args, {
    cwd: folder,
    env,
  });
  t.regex(stdout, /: no findings\n$/);
  process.kill(start.pid, 'SIGINT');
  t.is(await start.exited, 'exit code 0');
});
