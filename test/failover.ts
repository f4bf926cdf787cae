import { chmod, copyFile, mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { startPostgres } from '../deploy/local/postgres.ts';
import { startTemporal } from '../deploy/local/temporal.ts';
import { temporaryFolder, testSetting, withSql } from './support/database.ts';
import { runCheck, step } from './support/long-check.ts';
import { eventually } from './support/organization.ts';
import { runProgram } from './support/programs.ts';
import { Clients } from './support/promises.ts';
import { startServers } from './support/servers.ts';
import {
  changeServer,
  copyServer,
  startStandby,
  waitForStandby,
} from './support/standby.ts';
import {
  compare,
  openClients,
  startPrimary,
  startWholeService,
  type WholeService,
} from './support/whole-service.ts';

const HELP = `node test/failover.ts SCENARIO

Runs the whole service under load, breaks it, and follows the runbook. Prints which promises to
customers were kept.

  synchronous     kills PostgreSQL, and promotes a synchronous standby
  standby-lost    kills the synchronous standby, and goes on without it
  restore         restores PostgreSQL to an earlier point in time, and leaves Temporal as it is
  temporal-older  restores an older copy of Temporal's data, and leaves PostgreSQL as it is

system/failover.test.ts promotes a standby that lags.

Exit codes: 0 each broken promise was reported, 1 one was not, 2 wrong usage.`;

/** The number of batches between two steps of a scenario. */
const BATCHES = 30;

interface Scene {
  readonly folder: string;
  readonly defer: (stop: () => Promise<unknown>) => void;
}

const SCENARIOS: Readonly<Record<string, (scene: Scene) => Promise<Ended>>> = {
  synchronous,
  'standby-lost': loseStandby,
  restore,
  'temporal-older': restoreTemporal,
};

const { values, positionals } = parseArgs({
  options: { help: { type: 'boolean' } },
  allowPositionals: true,
});
const scenario = SCENARIOS[positionals[0] ?? ''];
if (values.help || scenario === undefined) {
  console.log(HELP);
  process.exit(values.help ? 0 : 2);
}

await runCheck(async (started) => {
  started.defer(await startServers());
  const folder = temporaryFolder((remove) => started.defer(remove));
  const ended = await scenario({ folder, defer: (stop) => started.defer(stop as never) });
  await step('the clients stop', () => ended.clients.stop());
  const { unseen, ...report } = await step('all work is done', () =>
    compare(ended.service, ended.clients),
  );
  console.dir(report, { depth: 4, maxArrayLength: 5 });
  await show(ended.service, 'doctor');
  await show(ended.service, 'status');
  if (unseen.length > 0) throw new Error(`broken without a report: ${unseen.join(', ')}`);
  console.log('Each broken promise is reported.');
});

interface Ended {
  readonly service: WholeService;
  readonly clients: Clients;
}

/** Starts the service with clients that have some accepted batches. */
async function startUnderLoad(
  { defer }: Scene,
  primary: { readonly url: string; readonly port: number },
  temporalAddress = testSetting('TEST_TEMPORAL_ADDRESS'),
): Promise<Ended> {
  const service = await startWholeService({ primary, temporalAddress, defer });
  const clients = new Clients(service.api.url, service.stack.receiver);
  clients.start(await openClients(service));
  defer(() => clients.stop());
  await step('load', () => clients.more(BATCHES));
  return { service, clients };
}

async function show({ operator }: WholeService, ...args: string[]): Promise<void> {
  const { code, stdout, stderr } = await operator(...args);
  console.log(`\n$ npm run operator -- ${args.join(' ')}\n${stdout}${stderr}(${code})\n`);
}

async function startSynchronous({ folder, defer }: Scene) {
  const primary = await startPrimary(join(folder, 'primary'));
  defer(() => primary.stop());
  const dataDir = join(folder, 'standby');
  const standby = await startStandby(primary, { name: 'standby', dataDir });
  defer(() => standby.stop());
  await waitForStandby(primary.url, 'standby');
  return { primary, standby, dataDir };
}

async function synchronous(scene: Scene): Promise<Ended> {
  const { primary, standby } = await startSynchronous(scene);
  const ended = await startUnderLoad(scene, primary);
  const { service, clients } = ended;
  process.kill(primary.pid, 'SIGKILL');
  await primary.exited;
  await step('customers notice', () => clients.moreResponses(/503/));
  await step('promotion', () => standby.promote());
  await service.moveTo(standby, clients);
  await step('load', () => clients.more(BATCHES));
  return ended;
}

async function loseStandby(scene: Scene): Promise<Ended> {
  const { primary, standby, dataDir } = await startSynchronous(scene);
  const ended = await startUnderLoad(scene, primary);
  const { service, clients } = ended;
  process.kill(standby.pid, 'SIGKILL');
  await standby.exited;
  await step('customers notice', () => clients.moreResponses(/POST 503/));
  const readiness = await eventually(async () => {
    const response = await fetch(`${service.api.url}/readyz`);
    return response.status === 503 ? await response.text() : null;
  });
  console.log(`GET /readyz: ${readiness}`);
  await show(service, 'status');
  await show(service, 'doctor', '--offline');
  await withSql(primary.url, async (sql) => {
    console.table(
      await sql`
        select wait_event, count(*)::int from pg_stat_activity
         where datname = ${new URL(service.stack.databaseUrl).pathname.slice(1)} and state <> 'idle' group by 1`,
    );
  });
  await step('continue without it', async () => {
    await changeServer(primary.url, "synchronous_standby_names = ''");
    await clients.more(BATCHES);
  });
  await step('the standby is back', async () => {
    const again = await startPostgres({ dataDir });
    scene.defer(() => again.stop());
    // Otherwise the drop of the database would wait for the stopped standby.
    scene.defer(() => changeServer(primary.url, "synchronous_standby_names = ''"));
    await waitForStandby(primary.url, 'standby');
    await clients.more(BATCHES);
  });
  return ended;
}

async function restore(scene: Scene): Promise<Ended> {
  const { folder, defer } = scene;
  const archive = join(folder, 'archive');
  await mkdir(archive);
  // PostgreSQL may run as another user.
  await chmod(archive, 0o777);
  const primary = await startPrimary(join(folder, 'primary'), [
    'archive_mode = on',
    `archive_command = 'cp %p ${archive}/%f'`,
  ]);
  let server: { stop(): Promise<void> } = primary;
  defer(() => server.stop());
  const ended = await startUnderLoad(scene, primary);
  const { service, clients } = ended;
  const dataDir = join(folder, 'restored');
  await step('backup', () =>
    copyServer(primary.url, dataDir, 'recovery.signal', [
      `restore_command = 'cp ${archive}/%f %p'`,
      "recovery_target_name = 'earlier'",
      "recovery_target_action = 'promote'",
    ]),
  );
  await step('load', () => clients.more(BATCHES));
  await withSql(primary.url, (sql) => sql`select pg_create_restore_point('earlier')`);
  await step('load that will be lost', () => clients.more(BATCHES));
  await service.api.kill();
  await service.worker.stop();
  await withSql(primary.url, (sql) => sql`select pg_switch_wal()`);
  await primary.stop();
  console.log(`archived: ${(await readdir(archive)).length} files`);
  const restored = await step('recovery', () => startPostgres({ dataDir }));
  server = restored;
  await withSql(restored.url, (sql) =>
    eventually(async () => {
      const [row] = await sql`select pg_is_in_recovery() as recovering`;
      return row?.recovering ? null : true;
    }),
  );
  await service.moveTo(restored, clients);
  await step('migrate', () =>
    runProgram('migrate', [], { env: { DATABASE_URL: service.stack.databaseUrl } }),
  );
  await show(service, 'doctor', '--offline');
  await service.api.start();
  await service.startWorker();
  await step('load', () => clients.more(BATCHES));
  return ended;
}

async function restoreTemporal(scene: Scene): Promise<Ended> {
  const { folder, defer } = scene;
  const primary = await startPrimary(join(folder, 'primary'));
  defer(() => primary.stop());
  const dbFile = join(folder, 'temporal.db');
  const options = {
    cli: testSetting('TEST_TEMPORAL_CLI'),
    namespace: 'default',
    dbFile,
  };
  let temporal = await startTemporal(options);
  defer(() => temporal.stop());
  const ended = await startUnderLoad(scene, primary, temporal.address);
  const { service, clients } = ended;
  const again = { ...options, port: temporal.port };
  await step('a copy of Temporal', async () => {
    await temporal.stop();
    await copyFile(dbFile, `${dbFile}.older`);
    temporal = await startTemporal(again);
  });
  await step('load', () => clients.more(2 * BATCHES));
  await step('an older Temporal', async () => {
    process.kill(temporal.pid, 'SIGKILL');
    await temporal.exited;
    temporal = await startTemporal({ ...again, dbFile: `${dbFile}.older` });
  });
  await show(service, 'status');
  await step('restart of the worker', async () => {
    await service.worker.stop();
    await service.startWorker();
  });
  await show(service, 'doctor');
  await step('load', () => clients.more(BATCHES));
  return ended;
}
