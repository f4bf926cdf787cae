import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { createServer, type ServerResponse } from 'node:http';
import { dirname, join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { startPostgres } from '../../../deploy/local/postgres.ts';
import { cacheFolder, findTemporalCli } from '../../../deploy/local/programs.ts';
import {
  digestOf,
  PRACTICE_DOMAINS,
  personOf,
} from '../../../deploy/local/sim/people.ts';
import { startTemporal } from '../../../deploy/local/temporal.ts';
import { LOOPBACK, listenOn } from '../../../deploy/ports.ts';
import { versionOf } from '../../../deploy/temporal/versions.ts';
import { bundleWorkflows } from '../../../deploy/temporal/workers.ts';
import { startBalancer } from '../../support/balancer.ts';
import { temporaryFolder, testSetting } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { startApiProcess, workerProcesses } from '../../support/programs.ts';
import { type Receiver, startReceiver } from '../../support/receiver.ts';
import { startRelay } from '../../support/relay.ts';
import { startServers, TEST_DYNAMIC_CONFIG } from '../../support/servers.ts';
import { type Stack, startStack } from '../../support/stack.ts';
import { startStandby, waitForStandby } from '../../support/standby.ts';
import { childrenOf } from './usage.ts';

// The servers of the simulated day: the real programs of the service as processes, and simulated
// vendors and receivers in this process, over real sockets.

/** The time from the primary's death to the promotion. Failover software may need this long. */
const NOTICE_MS = 5000;
/** The schedule of deliveries. It is short, so that they fail before the day ends. */
export const WEBHOOK_SCHEDULE = '0s,1s,5s,20s,40s';
const WORKER_SETTINGS = { WEBHOOK_SCHEDULE, WEBHOOK_LONGEST_REST: '10s' };
/**
 * The beginning of the folder for Temporal's database. It is in memory, because the dev server
 * writes to a disk one transaction after the other, which would limit the day to 5 NPIs a second.
 */
const MEMORY = '/dev/shm/npi-email-enrichment-';
/** How long a slow receiver takes to respond. */
const SLOW_MS = 3000;
const NEXT_WORKFLOWS = new URL('../../support/next-workflows.ts', import.meta.url);

export type World = Awaited<ReturnType<typeof startWorld>>;

/** @param lookupTimeout the value of LOOKUP_TIMEOUT, in seconds */
export async function startWorld(lookupTimeout: number) {
  await using started = new AsyncDisposableStack();
  const dir = temporaryFolder((remove) => started.defer(remove));
  const cluster = await startCluster(started, dir);
  const temporalDir = mkdtempSync(MEMORY);
  started.defer(() => rmSync(temporalDir, { recursive: true, force: true }));
  const temporalFile = join(temporalDir, 'temporal.db');
  const temporal = await startTemporal({
    cli: await findCli(),
    namespace: 'default',
    dynamicConfig: TEST_DYNAMIC_CONFIG,
    dbFile: temporalFile,
  });
  started.defer(() => temporal.stop());
  process.env.TEST_DATABASE_URL = cluster.url;
  process.env.TEST_TEMPORAL_ADDRESS = temporal.address;
  started.defer(await startServers());
  const taskQueue = `day-${process.pid}`;
  const stack = await startStack({
    elsewhere: { temporalAddress: temporal.address, taskQueue },
    lookupTimeoutMs: lookupTimeout * 1000,
  });
  started.defer(() => stack.stop());
  const vendors = await startVendors();
  started.defer(() => vendors.close());
  const receivers = await startReceivers(started, dirname(stack.receiver.caFile));
  const sourcesFile = join(dir, 'sources.json');
  await writeFile(sourcesFile, JSON.stringify(sourcesOf(vendors.url)));
  const { WEBHOOK_OPEN_CIDRS } = stack.workerEnvironment;
  const shared = { LOOKUP_TIMEOUT: `${lookupTimeout}s`, WEBHOOK_OPEN_CIDRS };
  const programs = await startPrograms(started, stack, {
    api: { ...shared, TASK_QUEUE: taskQueue, API_DRAIN_DELAY: '5s' },
    worker: { ...shared, ...WORKER_SETTINGS, SOURCES_FILE: sourcesFile },
    dir,
  });
  const running = started.move();
  return {
    stack,
    vendors,
    receivers,
    ...programs,
    promote: cluster.promote,
    /** Returns the process ids by the kind of process. */
    pids: () => ({
      ...programs.pids(),
      PostgreSQL: [cluster.pids()],
      Temporal: [[temporal.pid]],
      'this program': [[process.pid]],
    }),
    /** Returns when each delivery arrived, in milliseconds since 1970, by its id. */
    received: () => arrivalsOf(Object.values(receivers)),
    temporalBytes: () => bytesOf(temporalFile) + bytesOf(`${temporalFile}-wal`),
    stop: () => running.disposeAsync(),
  };
}

function findCli(): Promise<string> {
  const { XDG_CACHE_HOME, TEST_TEMPORAL_CLI } = process.env;
  if (TEST_TEMPORAL_CLI) return Promise.resolve(TEST_TEMPORAL_CLI);
  const cacheDir = cacheFolder(XDG_CACHE_HOME);
  return findTemporalCli({ cacheDir, onProgress: console.error });
}

function bytesOf(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

/**
 * Starts PostgreSQL with a synchronous standby. Clients connect to an address that always leads to
 * the primary, as with a proxy.
 */
async function startCluster(started: AsyncDisposableStack, dir: string) {
  const primary = await startPostgres({ dataDir: join(dir, 'primary') });
  started.defer(() => primary.stop());
  const name = 'standby';
  const standby = await startStandby(primary, { name, dataDir: join(dir, name) });
  started.defer(() => standby.stop());
  await waitForStandby(primary.url, name);
  const relay = await startRelay({ host: LOOPBACK, port: primary.port });
  started.defer(() => relay.close());
  const url = new URL(primary.url);
  url.port = String(relay.port);
  return {
    url: url.href,
    pids: () => [primary.pid, standby.pid].flatMap((pid) => [pid, ...childrenOf(pid)]),
    /** Kills the primary, and promotes the standby after some time. */
    async promote() {
      process.kill(primary.pid, 'SIGKILL');
      await primary.exited;
      await setTimeout(NOTICE_MS);
      await standby.promote();
      relay.moveTo({ host: LOOPBACK, port: standby.port });
    },
  };
}

/**
 * Starts two APIs behind a load balancer, and two workers.
 * @param settings environment variables in addition to those of the stack
 */
async function startPrograms(
  started: AsyncDisposableStack,
  stack: Stack,
  settings: Readonly<{
    api: Readonly<Record<string, string>>;
    worker: Readonly<Record<string, string>>;
    dir: string;
  }>,
) {
  const launchApi = async () => {
    const api = await startApiProcess(stack.databaseUrl, settings.api);
    started.defer(() => api.stop());
    return api;
  };
  const apis = [await launchApi(), await launchApi()];
  const balancer = await startBalancer(apis.map(({ url }) => url));
  started.defer(() => balancer.stop());
  const areReady = () =>
    eventually(async () => apis.every(({ url }) => balancer.hasInRotation(url)) || null);
  const processes = workerProcesses();
  started.defer(() => processes.stop());
  const launchWorker = (bundle: Readonly<Record<string, string>> = {}) =>
    processes.start(stack, { SWEEP_INTERVAL: '15s', ...settings.worker, ...bundle });
  const { code } = await bundleWorkflows(fileURLToPath(NEXT_WORKFLOWS));
  const WORKFLOW_BUNDLE = join(settings.dir, 'next.js');
  await writeFile(WORKFLOW_BUNDLE, code);
  let workers = [await launchWorker(), await launchWorker()];
  await areReady();

  return {
    baseUrl: balancer.url,
    replies: balancer.replies,
    areReady,
    pids: () => ({
      API: apis.map((api) => [api.pid()]),
      worker: workers.map(({ pid }) => [pid]),
    }),
    /** Replaces the APIs one after the other, then the workers by those of a changed build. */
    async release() {
      for (const api of apis) {
        await api.stop();
        await api.start();
        await areReady();
      }
      const old = workers;
      workers = [];
      for (const [n, worker] of old.entries()) {
        workers.push(await launchWorker({ WORKFLOW_BUNDLE }));
        if (n === old.length - 1) await oldRunsEnd(stack);
        process.kill(worker.pid, 'SIGTERM');
        await worker.exited;
      }
    },
  };
}

/** Waits until no run is left that must end on the old build. */
async function oldRunsEnd({ taskQueue, client }: Stack): Promise<void> {
  const old = await readFile(testSetting('TEST_WORKFLOW_BUNDLE'), 'utf8');
  const { deploymentName, buildId } = versionOf(taskQueue, old);
  const runs = `TemporalWorkerDeploymentVersion = '${deploymentName}:${buildId}' and TemporalWorkflowVersioningBehavior = 'Pinned' and ExecutionStatus = 'Running'`;
  await eventually(async () => (await client.workflow.count(runs)).count === 0 || null);
}

/** The percentages of people that each vendor knows, as a range of `percentOf`. */
const KNOWN = { first: [0, 55], second: [35, 75] } as const;

type VendorName = keyof typeof KNOWN;

/** Starts the server of two vendors, which search by NPI. The first can be out of service. */
async function startVendors() {
  let isOut = false;
  let responses = 0;
  const respond = async (path: string, response: ServerResponse) => {
    const [, vendor = '', npi = ''] = path.split('/');
    if (isOut && vendor === 'first') {
      // Every other call gets no response.
      if (Number(npi) % 2 === 0) response.writeHead(503).end();
      return;
    }
    await setTimeout(latencyOf(npi));
    const [from, to] = KNOWN[vendor as VendorName];
    const percent = percentOf(npi);
    const isKnown = from <= percent && percent < to;
    const body = isKnown ? profileOf(npi) : { message: 'Nobody has this NPI.' };
    response.writeHead(isKnown ? 200 : 404, { 'content-type': 'application/json' });
    response.end(JSON.stringify(body));
    if (vendor === 'first') responses += 1;
  };
  const server = createServer((request, response) => {
    void respond(request.url ?? '', response).catch(() => response.destroy());
  });
  const { port, close } = await listenOn(server, 0, 'the vendors');
  return {
    url: `http://${LOOPBACK}:${port}`,
    /** Lets the first vendor reject calls or not respond. */
    fail() {
      isOut = true;
    },
    /** Ends the outage. Resolves when we call the vendor again. */
    async repair() {
      isOut = false;
      const before = responses;
      await eventually(async () => responses > before + 10 || null);
    },
    close,
  };
}

function percentOf(npi: string): number {
  return digestOf(npi).readUInt16BE(12) % 100;
}

/** Returns 0.2 to 1.5 s. Real vendors take about four times as long. */
function latencyOf(npi: string): number {
  return 200 + 5 * digestOf(npi).readUInt8(14);
}

function profileOf(npi: string) {
  const domain = PRACTICE_DOMAINS[percentOf(npi) % PRACTICE_DOMAINS.length];
  const checked = { state: 'ok', checked_at: new Date().toISOString() };
  const work = { address: `n${npi.slice(1)}@${domain}`, kind: 'work', ...checked };
  const { first, last, homeEmail } = personOf(npi);
  const home = { address: homeEmail, kind: 'home', ...checked };
  return { npi, first, last, emails: percentOf(npi) % 3 === 0 ? [work, home] : [work] };
}

/** Returns the content of the sources file. */
function sourcesOf(url: string) {
  const http = Object.keys(KNOWN).map((id) => ({
    id,
    url: `${url}/${id}/{npi}`,
    needs: ['npi'],
    gives: ['professional', 'personal'],
    cost: 1,
    may_store: true,
    wait: '15s',
    call: '5s',
    candidates: {
      list: '/emails',
      email: '/address',
      type: { pointer: '/kind', values: { work: 'professional', home: 'personal' } },
      status: { pointer: '/state', values: { ok: 'valid' } },
      validated_at: '/checked_at',
    },
    identity: { npi: '/npi', first: '/first', last: '/last' },
  }));
  return { order: Object.keys(KNOWN), http };
}

/**
 * The kinds of receivers, each with the path of its URL and the number of the first attempt that it
 * accepts. A failing receiver accepts no attempt.
 */
export const RECEIVERS = {
  good: { path: '/ok', accepts: 1 },
  slow: { path: '/slow', accepts: 1 },
  flaky: { path: '/fail/2/x', accepts: 3 },
  failing: { path: '/status/500', accepts: Number.POSITIVE_INFINITY },
} as const;
export type ReceiverKind = keyof typeof RECEIVERS;

/** Starts a receiver of each kind. Each has its own port, because breakers count by host and port. */
async function startReceivers(started: AsyncDisposableStack, dir: string) {
  const start = async () => {
    const receiver = await startReceiver(dir);
    started.defer(() => receiver.close());
    return receiver;
  };
  const slow = await start();
  slow.setBehavior(RECEIVERS.slow.path, (response) => {
    void setTimeout(SLOW_MS).then(() => response.end());
  });
  return { good: await start(), slow, flaky: await start(), failing: await start() };
}

function arrivalsOf(receivers: readonly Receiver[]): ReadonlyMap<string, number[]> {
  const arrivals = new Map<string, number[]>();
  for (const { id, at } of receivers.flatMap((receiver) => receiver.deliveries())) {
    const own = arrivals.get(id) ?? [];
    own.push(Date.parse(at));
    arrivals.set(id, own);
  }
  return arrivals;
}
