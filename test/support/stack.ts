import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Client, Connection } from '@temporalio/client';
import { NativeConnection } from '@temporalio/worker';
import { and, eq, isNull } from 'drizzle-orm';
import { pino } from 'pino';
import type { VendorSource } from '../../activities/deps.ts';
import type { Registry } from '../../activities/person/registry.ts';
import { runSweeps } from '../../activities/sweep.ts';
import type { Vendor } from '../../activities/vendors/vendor.ts';
import { createAddressPolicy } from '../../activities/webhooks/ip-policy.ts';
import { createPost } from '../../activities/webhooks/post.ts';
import { type Database, openDatabase } from '../../db/client.ts';
import { requests } from '../../db/schema.ts';
import { loadConfig } from '../../deploy/config/config.ts';
import { createApi } from '../../deploy/config/create-api.ts';
import { createSources } from '../../deploy/config/sources.ts';
import { startDns } from '../../deploy/local/dns.ts';
import { startReceiver } from '../../deploy/local/receiver.ts';
import { importSample } from '../../deploy/local/sample.ts';
import { createSimulator, SIMULATED, type Simulator, sourceSettings } from '../../deploy/local/simulator.ts';
import { createLog } from '../../deploy/log.ts';
import { createControl } from '../../deploy/temporal/client.ts';
import { prepareNamespace, reverifyScheduleId } from '../../deploy/temporal/namespace.ts';
import { installRuntime, startWorkers } from '../../deploy/temporal/workers.ts';
import { openTestDatabase } from './database.ts';
import { testSetting } from './environment.ts';
import { createCaller, type Organization, openOrganization } from './organization.ts';

/** What a test may shorten; times in milliseconds. */
export interface StackOptions {
  readonly lookupTimeoutMs?: number;
  readonly sweepIntervalMs?: number;
  readonly webhookScheduleMs?: readonly number[];
  readonly rateWindowMs?: number;
  readonly replayMs?: number;
  readonly simulatorSpeed?: number;
  /** An address where no Temporal is, for the API alone. */
  readonly apiTemporalAddress?: string;
  /** Receives each log line of API and worker, as JSON text, at the lowest level. */
  readonly onLog?: (line: string) => void;
  /** Asked in place of the simulated vendors. */
  readonly providers?: readonly Vendor[];
  /** Asked in place of all others, as they are. */
  readonly vendors?: readonly VendorSource[];
  /** Asked in place of the simulated registry. */
  readonly registry?: Registry;
  /** Every simulated vendor, Reacher and the registry are configured, and the sample of NPPES is there; else RocketReach alone. */
  readonly allSources?: boolean;
  /** Further settings of RocketReach, as an operator would give them in the sources file. */
  readonly rocketReach?: { readonly wait?: string; readonly call?: string };
  /** Another Temporal than the runner's and no worker here: for tests that run `deploy/worker.ts` as a process. */
  readonly elsewhere?: { readonly temporalAddress: string; readonly taskQueue: string };
}

const API_KEY = 'test-rocketreach-key';
const quiet = pino({ level: process.env.TEST_LOG_LEVEL ?? 'silent' });
let runtimeInstalled = false;

/** The whole service in this process: real PostgreSQL, real Temporal, real sockets; vendor and receiver at the edge. */
export async function startStack(options: StackOptions = {}) {
  if (!runtimeInstalled) installRuntime(quiet);
  runtimeInstalled = true;
  const { onLog } = options;
  const log = onLog ? createLog('test', 'trace', { write: onLog }) : quiet;
  // Closed in the reverse order: by `stop`, or at once if something further down fails.
  await using opened = new AsyncDisposableStack();
  const dir = await mkdtemp(join(tmpdir(), 'stack-'));
  opened.defer(() => rm(dir, { recursive: true, force: true }));
  const database = await openTestDatabase();
  opened.defer(() => database.drop());
  const db = openDatabase({ url: database.url, poolSize: 20, applicationName: 'test' });
  opened.defer(() => db.close());
  if (options.allSources) await importSample(database.url, dir);
  const taskQueue = options.elsewhere?.taskQueue ?? `enrichment-${database.url.split('_').at(-1)}`;
  const simulator = await createSimulator({ port: 0, speed: options.simulatorSpeed ?? 20, apiKey: API_KEY });
  opened.defer(() => simulator.close());
  const receiver = await startReceiver({ port: 0, dir });
  opened.defer(() => receiver.close());
  const dns = await startDns();
  opened.defer(() => dns.close());

  const address = options.elsewhere?.temporalAddress ?? testSetting('TEST_TEMPORAL_ADDRESS');
  const connection = await Connection.connect({ address });
  opened.defer(() => connection.close());
  const client = new Client({ connection });
  const apiConnection = Connection.lazy({ address: options.apiTemporalAddress ?? address });
  opened.defer(() => apiConnection.close());
  const native = await NativeConnection.connect({ address });
  opened.defer(() => native.close());
  let worker: { stop(): Promise<void> } | null = null;
  opened.defer(() => worker?.stop());
  await prepareNamespace(client, taskQueue, 3_600_000, log);
  opened.defer(async () => {
    await client.schedule.getHandle(reverifyScheduleId(taskQueue)).delete();
  });

  const sourcesFile = join(dir, 'sources.json');
  await writeFile(sourcesFile, JSON.stringify(sourcesOf(options)));
  const sourceEnvironment = { ...settingsOf(simulator, options), SOURCES_FILE: sourcesFile };
  const loaded = loadConfig({ DATABASE_URL: database.url, ...sourceEnvironment });
  const config = {
    ...loaded,
    apiHost: '127.0.0.1',
    apiPort: 0,
    dnsServers: [dns.address],
    lookupTimeoutMs: options.lookupTimeoutMs ?? 60_000,
    replayMs: options.replayMs ?? loaded.replayMs,
    rateWindowMs: options.rateWindowMs ?? loaded.rateWindowMs,
    webhookScheduleMs: options.webhookScheduleMs ?? [0, 100, 200, 300],
    webhookOpenCidrs: ['127.0.0.0/8', '::1/128'],
  };
  const policy = createAddressPolicy({ openCidrs: config.webhookOpenCidrs });
  const rules = {
    ...config,
    greylistMs: 1000,
    sweep: { startAfterMs: 500, checkEveryMs: 1000 },
  };
  const configured = createSources(config, db);
  const vendors = options.vendors ?? options.providers?.map((vendor) => vendorSource(vendor));
  const startWorker = async () => {
    const stopping = new AbortController();
    const control = createControl(client, taskQueue);
    const sweepMs = options.sweepIntervalMs ?? 60_000;
    const sweeping = runSweeps({ db, log, control, rules }, sweepMs, stopping.signal);
    const workers = await startWorkers({
      connection: native,
      client,
      taskQueue,
      workflowBundle: { codePath: testSetting('TEST_WORKFLOW_BUNDLE') },
      lookupSlots: 100,
      deps: {
        db,
        log,
        ...configured,
        ...(vendors ? { vendors } : {}),
        ...(options.registry ? { registry: options.registry } : {}),
        post: createPost({ policy, ca: await readFile(receiver.caFile, 'utf8'), userAgent: 'test' }),
        rules,
      },
    });
    return {
      async stop() {
        stopping.abort();
        await Promise.all([workers.stop(), sweeping]);
      },
    };
  };
  const server = createApi(config, {
    db,
    log,
    client: new Client({ connection: apiConnection }),
    taskQueue,
  });
  opened.defer(() => server.stop({ timeout: 1000 }));
  await server.start();
  if (!options.elsewhere) worker = await startWorker();
  const running = opened.move();

  return {
    baseUrl: server.info.uri,
    db,
    databaseUrl: database.url,
    client,
    taskQueue,
    simulator,
    receiver,
    /** A new organization with credits and a key, and its way to call the API. */
    async organization(credits = 1000, requestsPerMinute?: number) {
      const organization: Organization = await openOrganization(db, credits, requestsPerMinute);
      return { ...organization, ...createCaller(server.info.uri, organization.apiKey) };
    },
    /** The ids of an organization's requests that are not final. */
    async openRequests(organizationId: string): Promise<string[]> {
      const rows = await db.drizzle
        .select({ id: requests.id })
        .from(requests)
        .where(and(eq(requests.organizationId, organizationId), isNull(requests.settledAt)));
      return rows.map((row) => row.id);
    },
    /** What `deploy/worker.ts` needs to work for this stack. */
    workerEnvironment: {
      DATABASE_URL: database.url,
      TEMPORAL_ADDRESS: address,
      ...sourceEnvironment,
      DNS_SERVERS: dns.address,
      WEBHOOK_CA_FILE: receiver.caFile,
      WEBHOOK_OPEN_CIDRS: '127.0.0.0/8',
      WORKFLOW_BUNDLE: testSetting('TEST_WORKFLOW_BUNDLE'),
    },
    async stopWorker() {
      await worker?.stop();
    },
    async startWorker() {
      worker = await startWorker();
    },
    stop: () => running.disposeAsync(),
  };
}

/** The simulated vendors as an operator would configure real ones. */
function settingsOf({ urls }: Simulator, { allSources }: StackOptions) {
  const settings = sourceSettings(urls, API_KEY);
  const { ROCKETREACH_URL = '', ROCKETREACH_API_KEY = '' } = settings;
  return { ...(allSources ? settings : {}), ROCKETREACH_URL, ROCKETREACH_API_KEY };
}

/** The rates of the real ones would only slow the tests down. */
function sourcesOf({ allSources, rocketReach }: StackOptions) {
  const { verifiers, ...simulated } = allSources ? SIMULATED : {};
  return {
    ...simulated,
    vendors: { rocketreach: { rates: FAST, ...rocketReach }, fullenrich: { rates: FAST, poll: '100ms' } },
    verifiers: { ...verifiers, reacher: { rates: FAST } },
  };
}

const FAST = ['10000/1s'];

/** A vendor without limits, waited for as long as there is time. */
export function vendorSource(vendor: Vendor, rest: Partial<Omit<VendorSource, 'vendor'>> = {}): VendorSource {
  const limits = { rates: [], dailyCredits: null };
  return { vendor, types: vendor.gives, mayStore: true, capMs: 600_000, limits, ...rest };
}

export type Stack = Awaited<ReturnType<typeof startStack>>;
export type TestDb = Database;
