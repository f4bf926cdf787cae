import { randomBytes } from 'node:crypto';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { freePort, LOOPBACK } from '../../deploy/ports.ts';
import { describeRun } from '../../deploy/temporal/client.ts';
import { OUTCOME } from '../../workflows/messages.ts';
import { asRole, withSql } from './database.ts';
import { auditLedger } from './ledger.ts';
import { RULES } from './organization.ts';
import {
  type Ended,
  runProgram,
  startApiProcess,
  type WorkerProcess,
  workerProcesses,
} from './programs.ts';
import type { Account, Clients } from './promises.ts';
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
  const metricsPort = await freePort();
  const workerMetrics = { METRICS_HOST: LOOPBACK, METRICS_PORT: String(metricsPort) };
  const apiLog: string[] = [];
  const api = await startApiProcess(
    stack.databaseUrl,
    {
      ...common,
      LOG_LEVEL: 'info',
      WEBHOOK_OPEN_CIDRS: '127.0.0.0/8',
    },
    (line) => apiLog.push(line),
  );
  defer(() => api.stop());
  const workers = workerProcesses();
  defer(() => workers.stop());
  const started: WorkerProcess[] = [];
  const startWorker = async () => {
    const worker = await workers.start(stack, workerMetrics);
    started.push(worker);
    return worker;
  };
  const operator = (...args: string[]): Promise<Ended> =>
    runProgram('operator', args, {
      env: { ...common, DATABASE_URL: asRole(stack.databaseUrl, 'operator') },
    });
  return {
    stack,
    api,
    worker: await startWorker(),
    startWorker,
    /** Moves the address to another server with a copy of the data, which may lack changes. */
    async moveTo({ port }: Server, clients: Clients): Promise<void> {
      const url = new URL(stack.databaseUrl);
      url.port = String(port);
      const open = await withSql(
        url.href,
        (sql) => sql<{ id: string }[]>`select id from requests where settled_at is null`,
      );
      const reopened: string[] = [];
      for (const { id } of open) {
        const lookup = await describeRun(stack.client, id);
        // A lookup that is still open repeats its last activity, so it loses no result.
        if (lookup?.closeTime === undefined) continue;
        const outcome = lookup.typedSearchAttributes.get(OUTCOME);
        if (!outcome?.startsWith('failed')) reopened.push(id);
      }
      clients.noteReopened(reopened);
      address.moveTo({ host: LOOPBACK, port });
    },
    operator,
    /** Lists the batches that the API's log names as accepted. */
    loggedBatches: () =>
      new Set(
        apiLog
          .filter((line) => line.includes('"batch accepted"'))
          .map((line) => (JSON.parse(line) as { batch_id: string }).batch_id),
      ),
    /** Lists the requests that the log of a worker names because their result is lost. */
    loggedResults: () =>
      new Set(
        started
          .flatMap((worker) => worker.output().split('\n'))
          .filter((line) => line.includes('"what":"result"'))
          .map((line) => (JSON.parse(line) as { request_id: string }).request_id),
      ),
    /** Returns the batches and results that `doctor` lists as lost, and its other findings. */
    async doctor() {
      const { stdout } = await operator('doctor', '--json');
      const { checks } = JSON.parse(stdout) as {
        checks: { code: string; findings: number; examples: string[] }[];
      };
      const found = checks.filter(({ findings }) => findings > 0);
      const idsOf = (wanted: string) => {
        const check = found.find(({ code }) => code === wanted);
        return new Set(check?.examples.map((one) => one.split(' ')[0]));
      };
      const codes = found.map(({ code }) => code);
      return {
        batches: idsOf('batch_lost'),
        results: idsOf('result_lost'),
        others: codes.filter((code) => !['batch_lost', 'result_lost'].includes(code)),
      };
    },
    /** Reads how many lost results the metric of the last worker counts. */
    async countedResults(): Promise<number> {
      const response = await fetch(`http://${LOOPBACK}:${metricsPort}/metrics`);
      const text = await response.text();
      const line = /^npe_lost_work_total\{what="result"\} (\d+)$/m.exec(text);
      if (line === null) throw new Error('the metric is missing');
      return Number(line[1]);
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
 * reports. `unseen` lists broken promises without a report.
 */
export async function compare(service: WholeService, clients: Clients) {
  const account = await clients.account();
  const doctor = await service.doctor();
  const batches = await compareBatches(service, account, doctor.batches);
  const results = await compareResults(service, account, doctor.results);
  const faults = await withSql(service.stack.databaseUrl, async (sql) => {
    const rows = await sql<{ id: string }[]>`select id from organizations`;
    const ids = rows.map(({ id }) => id);
    return await auditLedger(sql, ids, RULES.replayMs);
  });
  return {
    account,
    byDoctor: batches.byDoctor,
    byLogOnly: batches.byLogOnly,
    lostResults: results.counts,
    // A webhook that was sent with a lost result is earlier than the next result.
    otherFindings: doctor.others.filter(
      (code) => code !== 'delivery_too_early' || account.reopened.length === 0,
    ),
    unseen: [...batches.unseen, ...results.unseen, ...account.silent, ...faults],
  };
}

/**
 * Sorts the lost batches by their report. Each batch with a workflow must be in the list of
 * `doctor`. The others, for example bulks that waited for their turn, are only in the API's log.
 */
async function compareBatches(
  service: WholeService,
  { lost }: Account,
  listed: ReadonlySet<string | undefined>,
) {
  const { client } = service.stack;
  const logged = service.loggedBatches();
  const byLogOnly: string[] = [];
  const unseen: string[] = [];
  for (const id of lost) {
    if (listed.has(id)) continue;
    const isForLog = (await describeRun(client, id)) === null && logged.has(id);
    (isForLog ? byLogOnly : unseen).push(id);
  }
  return {
    byDoctor: lost.filter((id) => listed.has(id)).length,
    byLogOnly: byLogOnly.length,
    unseen,
  };
}

/**
 * Sorts the lost results by their report. The workers log and count each that is looked up again.
 * `doctor` lists those whose deadline came first.
 */
async function compareResults(
  service: WholeService,
  { reopened, changed }: Account,
  listed: ReadonlySet<string | undefined>,
) {
  const logged = service.loggedResults();
  const isReported = (id: string) => logged.has(id) || listed.has(id);
  return {
    counts: {
      all: reopened.length,
      byLog: reopened.filter((id) => logged.has(id)).length,
      byDoctor: reopened.filter((id) => listed.has(id)).length,
      byMetric: await service.countedResults(),
    },
    unseen: [...reopened, ...changed.map(({ requestId }) => requestId)].filter(
      (id) => !isReported(id),
    ),
  };
}
