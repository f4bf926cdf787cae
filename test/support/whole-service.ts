import { randomBytes } from 'node:crypto';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { freePort, LOOPBACK } from '../../deploy/ports.ts';
import { asRole, withSql } from './database.ts';
import { auditLedger } from './ledger.ts';
import { RULES } from './organization.ts';
import { type Ended, runProgram, startApiProcess, workerProcesses } from './programs.ts';
import type { Clients } from './promises.ts';
import { startRelay } from './relay.ts';
import { startStack } from './stack.ts';

type Server = { readonly url: string; readonly host?: string; readonly port: number };

/** Starts a PostgreSQL that can have standbys, with these settings. */
export async function startPrimary(dataDir: string, settings: readonly string[] = []) {
  const first = await startPostgres({ dataDir });
  await withSql(first.url, async (sql) => {
    // These tests kill processes, not the machine, so nothing has to reach the disk.
    for (const setting of ['fsync = off', ...settings]) {
      await sql.unsafe(`alter system set ${setting}`);
    }
  });
  await first.stop();
  return await startPostgres({ dataDir, port: first.port });
}

/**
 * Starts the whole service as in production: API and worker are processes, and reach PostgreSQL at
 * an address that can move to another server. Vendors and the receiver of webhooks are simulated.
 * @param options.folder a folder that every user can enter
 * @param options.defer stops what was started, in reverse order
 */
export async function startWholeService(options: {
  readonly primary: Server;
  readonly temporalAddress: string;
  readonly defer: (stop: () => Promise<unknown>) => void;
}) {
  const { primary, temporalAddress, defer } = options;
  const address = await startRelay({ host: LOOPBACK, port: primary.port });
  defer(async () => address.close());
  const admin = new URL(primary.url);
  admin.port = String(address.port);
  // `startStack` makes its database on this server, through the address that moves.
  process.env.TEST_DATABASE_URL = admin.href;
  const taskQueue = `enrichment-${randomBytes(4).toString('hex')}`;
  const stack = await startStack({ elsewhere: { temporalAddress, taskQueue } });
  defer(() => stack.stop());
  const common = { TASK_QUEUE: taskQueue, TEMPORAL_ADDRESS: temporalAddress };
  const metricsPorts = [await freePort(), await freePort()];
  const [apiMetrics, workerMetrics] = metricsPorts.map((port) => ({
    METRICS_HOST: LOOPBACK,
    METRICS_PORT: String(port),
  }));
  const apiLog: string[] = [];
  const api = await startApiProcess(
    stack.databaseUrl,
    {
      ...common,
      ...apiMetrics,
      LOG_LEVEL: 'info',
      WEBHOOK_OPEN_CIDRS: '127.0.0.0/8',
    },
    (line) => apiLog.push(line),
  );
  defer(() => api.stop());
  const workers = workerProcesses();
  defer(() => workers.stop());
  const startWorker = () => workers.start(stack, workerMetrics);
  const operator = (...args: string[]): Promise<Ended> =>
    runProgram('operator', args, {
      env: { ...common, DATABASE_URL: asRole(stack.databaseUrl, 'operator') },
    });
  return {
    stack,
    api,
    worker: await startWorker(),
    startWorker,
    /** Moves the address to another server with a copy of the data. */
    moveTo: ({ port }: Server) => address.moveTo({ host: LOOPBACK, port }),
    operator,
    /** Lists the batches that the API's log names as accepted. */
    loggedBatches: () =>
      new Set(
        apiLog
          .filter((line) => line.includes('"batch accepted"'))
          .map((line) => (JSON.parse(line) as { batch_id: string }).batch_id),
      ),
    /** Returns the batches that `doctor` lists as lost, and its other findings. */
    async doctor() {
      const { stdout } = await operator('doctor', '--json');
      const { checks } = JSON.parse(stdout) as {
        checks: { code: string; findings: number; examples: string[] }[];
      };
      const found = checks.filter(({ findings }) => findings > 0);
      const lost = found.find(({ code }) => code === 'batch_lost')?.examples ?? [];
      return {
        lost: new Set(lost.map((one) => one.split(' ')[0])),
        others: found.map(({ code }) => code).filter((code) => code !== 'batch_lost'),
      };
    },
    /** Reads a metric of the worker, summed over its labels. */
    async workerMetric(name: string): Promise<number> {
      const response = await fetch(`http://${LOOPBACK}:${metricsPorts[1]}/metrics`);
      const lines = (await response.text()).split('\n');
      return lines
        .filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
        .reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
    },
  };
}

export type WholeService = Awaited<ReturnType<typeof startWholeService>>;

/** Opens three customers, and the sandbox of the first. */
export async function openClients({ stack }: WholeService) {
  const live = [];
  for (let nth = 0; nth < 3; nth += 1) live.push(await stack.organization(100_000));
  const [first] = live;
  if (first === undefined) throw new Error('no customer');
  return [...live, await stack.sandboxOf(first)];
}

/**
 * Waits until all work is done, and compares the promises of the service with what it keeps and
 * reports. `unseen` lists broken promises that neither `doctor` nor a log reports.
 */
export async function compare(service: WholeService, clients: Clients) {
  const account = await clients.account();
  const { lost, others } = await service.doctor();
  const logged = service.loggedBatches();
  const { stack } = service;
  const faults = await withSql(stack.databaseUrl, async (sql) => {
    const rows = await sql<{ id: string }[]>`select id from organizations`;
    const ids = rows.map(({ id }) => id);
    return await auditLedger(sql, ids, RULES.replayMs);
  });
  const missed = account.lost.filter((id) => !lost.has(id) && !logged.has(id));
  return {
    account,
    byDoctor: account.lost.filter((id) => lost.has(id)).length,
    byLogOnly: account.lost.filter((id) => !lost.has(id) && logged.has(id)).length,
    lostWork: await service.workerMetric('npe_lost_work_total'),
    otherFindings: others,
    unseen: [...missed, ...account.changed, ...account.silent, ...faults],
  };
}
