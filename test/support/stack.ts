import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Client, Connection } from '@temporalio/client';
import { NativeConnection } from '@temporalio/worker';
import { and, eq, isNull } from 'drizzle-orm';
import { pino } from 'pino';
import type { VendorSource } from '../../activities/deps.ts';
import type { Registry } from '../../activities/person/registry.ts';
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
import { createSimulator, type Simulator, sourceSettings } from '../../deploy/local/simulator.ts';
import { createLog } from '../../deploy/log.ts';
import { prepareNamespace, scheduleId } from '../../deploy/temporal/namespace.ts';
import { installRuntime, startWorkers } from '../../deploy/temporal/workers.ts';
import { WORKFLOWS } from '../../workflows/messages.ts';
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
  /** Further settings of the sources, as an operator would give them. */
  readonly environment?: Readonly<Record<string, string>>;
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
  opened.defer(() => database.stop());
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
  const intervals = { sweepMs: options.sweepIntervalMs ?? 60_000, reverifyMs: 3_600_000 };
  let workers: Awaited<ReturnType<typeof startWorkers>> | null = null;
  opened.defer(() => workers?.stop());
  await prepareNamespace(client, taskQueue, intervals, log);
  opened.defer(async () => {
    for (const type of [WORKFLOWS.sweep, WORKFLOWS.reverify]) {
      await client.schedule.getHandle(scheduleId(type, taskQueue)).delete();
    }
  });

  const sourceEnvironment = settingsOf(simulator, options);
  const loaded = loadConfig({ DATABASE_URL: database.url, ...sourceEnvironment });
  const config = {
    ...loaded,
    apiHost: '127.0.0.1',
    apiPort: 0,
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
    sweep: { startAfterMs: 500, settleAfterMs: 500, checkEveryMs: 1000 },
  };
  const configured = createSources(config, { db, dnsServers: [dns.address] });
  const vendors = options.vendors ?? options.providers?.map((vendor) => vendorSource(vendor));
  const startWorker = async () =>
    startWorkers({
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
  const server = createApi(config, {
    db,
    log,
    client: new Client({ connection: apiConnection }),
    taskQueue,
  });
  opened.defer(() => server.stop({ timeout: 1000 }));
  await server.start();
  if (!options.elsewhere) workers = await startWorker();
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
      await workers?.stop();
    },
    async startWorker() {
      workers = await startWorker();
    },
    stop: () => running.disposeAsync(),
  };
}

/** The simulated vendors as an operator would configure real ones; their rates would only slow the tests down. */
function settingsOf({ urls }: Simulator, { allSources, environment }: StackOptions) {
  const { ROCKETREACH_URL, ROCKETREACH_API_KEY, ...others } = sourceSettings(urls, API_KEY);
  const quick = {
    ROCKETREACH_RATES: FAST,
    REACHER_RATES: FAST,
    FULLENRICH_RATES: FAST,
    FULLENRICH_POLL: '100ms',
  };
  return { ROCKETREACH_URL, ROCKETREACH_API_KEY, ...quick, ...(allSources ? others : {}), ...environment };
}

const FAST = '10000/1s';

/** A vendor without limits, waited for as long as there is time. */
export function vendorSource(vendor: Vendor, rest: Partial<Omit<VendorSource, 'vendor'>> = {}): VendorSource {
  const limits = { rates: [], dailyCredits: null };
  return { vendor, types: vendor.gives, mayStore: true, capMs: 600_000, limits, ...rest };
}

export type Stack = Awaited<ReturnType<typeof startStack>>;
export type TestDb = Database;
