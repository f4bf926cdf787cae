import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Client, Connection } from '@temporalio/client';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { and, eq, isNull } from 'drizzle-orm';
import type { VendorSource } from '../../activities/deps.ts';
import { createNames } from '../../activities/http/names.ts';
import type { Registry } from '../../activities/person/registry.ts';
import { createSpending, type SpendingSettings } from '../../activities/spending.ts';
import type { Vendor } from '../../activities/vendors/vendor.ts';
import { openDatabase } from '../../db/client.ts';
import { requests } from '../../db/schema.ts';
import type { SecretKey } from '../../db/secrets.ts';
import {
  type ApiConfig,
  type Config,
  loadApiConfig,
  loadConfig,
} from '../../deploy/config/config.ts';
import { createApi } from '../../deploy/config/create-api.ts';
import { createSources } from '../../deploy/config/sources.ts';
import { postOf, rulesOf } from '../../deploy/config/worker.ts';
import { startDns } from '../../deploy/local/dns.ts';
import { importSample } from '../../deploy/local/sample.ts';
import {
  createSimulator,
  SIMULATED,
  type Simulator,
  sourceSettings,
} from '../../deploy/local/simulator.ts';
import { createLog } from '../../deploy/log.ts';
import {
  keepBooks,
  runReconciler,
  tendWorkflows,
} from '../../deploy/reconciler/reconciler.ts';
import { createControl } from '../../deploy/temporal/client.ts';
import { keepNamespace, reverifyScheduleId } from '../../deploy/temporal/namespace.ts';
import { temporalTrouble } from '../../deploy/temporal/trouble.ts';
import { createRollout, versionOf } from '../../deploy/temporal/versions.ts';
import { loadBundle, startWorkers } from '../../deploy/temporal/workers.ts';
import {
  asRole,
  openTestDatabase,
  SECRET_KEYS,
  SECRETS_KEY,
  temporaryFolder,
  testSetting,
} from './database.ts';
import {
  createCaller,
  type Organization,
  openOrganization,
  openTestKey,
} from './organization.ts';
import { startReceiver } from './receiver.ts';
import { installTestRuntime, quiet } from './runtime.ts';
import { SITE_SETTINGS } from './site.ts';
import type { SkippedTime } from './skipped-time.ts';

/**
 * Settings, which may be shorter here than operators may have them, and what is around an API
 * process.
 */
export interface ApiOptions extends Partial<ApiConfig> {
  /** How long it waits for PostgreSQL. */
  readonly deadlineMs?: number | undefined;
  /** The number of its connections to PostgreSQL. */
  readonly poolSize?: number;
  /** Receives each log line, as JSON text, at the lowest level. */
  readonly onLog?: ((line: string) => void) | undefined;
  readonly temporalAddress?: string;
  readonly taskQueue?: string;
}

export interface StackOptions extends Partial<ApiConfig> {
  readonly simulatorSpeed?: number;
  /** An address where no Temporal is, for the API alone. */
  readonly apiTemporalAddress?: string;
  readonly onLog?: ApiOptions['onLog'];
  /** Asked in place of the simulated vendors. */
  readonly providers?: readonly Vendor[];
  /** Asked in place of all others, as they are. */
  readonly vendors?: readonly VendorSource[];
  /** In place of the settings in the sources file. */
  readonly spendingSettings?: SpendingSettings;
  /** Asked in place of the simulated registry. */
  readonly registry?: Registry;
  /**
   * Every simulated vendor, Reacher and the registry are configured, and the sample of NPPES is
   * there; else RocketReach alone.
   */
  readonly allSources?: boolean;
  /** Further settings of RocketReach, as an operator would give them in the sources file. */
  readonly rocketReach?: { readonly wait?: string; readonly call?: string } | undefined;
  /**
   * The rate limits of Reacher, as an operator would give them in the sources file. None is reached
   * by default.
   */
  readonly reacherRates?: readonly string[] | undefined;
  /**
   * Another Temporal than the runner's and no worker here: for tests that run `deploy/worker.ts` as
   * a process.
   */
  readonly elsewhere?: { readonly temporalAddress: string; readonly taskQueue: string };
  /**
   * In place of the runner's Temporal. All settings are then as operators have them. It stops with
   * the stack.
   */
  readonly time?: SkippedTime;
}

const API_KEY = 'test-rocketreach-key';
/** In place of the usual settings. */
const HERE = { apiHost: '127.0.0.1', apiPort: 0, lookupSlots: 100 };
/** Replaces the usual times, because these tests run in real time. */
const SHORT_TIMES = {
  lookupTimeoutMs: 60_000,
  sweepIntervalMs: 60_000,
  webhookScheduleMs: [0, 100, 200, 300],
  webhookLongestRestMs: 300,
};
const SHORT_RULES = {
  greylistMs: 1000,
  sweep: { startAfterMs: 500, checkEveryMs: 1000 },
};
const logOf = (onLog: ApiOptions['onLog']) =>
  onLog ? createLog('test', 'trace', { write: onLog }) : quiet;

/**
 * One API process, without worker, vendor and receiver: real HTTP, real PostgreSQL, and a Temporal
 * that takes the workflows nobody runs. Batches stay as the submit left them. Its database is a
 * migrated one of its own, if none is given.
 */
export async function startApi(options: ApiOptions = {}) {
  const {
    deadlineMs,
    poolSize = 20,
    onLog,
    temporalAddress,
    taskQueue = 'nobody',
    ...settings
  } = options;
  // Closed in the reverse order: by `stop`, or at once if something further down fails.
  await using opened = new AsyncDisposableStack();
  const databaseUrl = settings.databaseUrl ?? opened.use(await openTestDatabase()).url;
  const deadline = deadlineMs === undefined ? {} : { deadlineMs };
  const open = (
    url: string,
    applicationName: string,
    secretKeys: readonly SecretKey[] = [],
  ) => {
    const db = openDatabase({ url, poolSize, applicationName, secretKeys, ...deadline });
    opened.defer(() => db.close());
    return db;
  };
  const db = open(databaseUrl, 'test', SECRET_KEYS);
  const itsDb = open(asRole(databaseUrl, 'api'), 'test api');
  const address = temporalAddress ?? testSetting('TEST_TEMPORAL_ADDRESS');
  const connection = Connection.lazy({ address });
  opened.defer(() => connection.close());
  const config = {
    ...loadApiConfig({ DATABASE_URL: databaseUrl, ...SITE_SETTINGS }),
    ...HERE,
    ...SHORT_TIMES,
    ...settings,
  };
  const client = new Client({ connection });
  const trouble = async () =>
    (await temporalTrouble({ connectionOptions: { address } }))?.message ?? null;
  const server = await createApi(config, {
    db: itsDb,
    log: logOf(onLog),
    client,
    taskQueue,
    trouble,
  });
  opened.defer(() => server.stop({ timeout: 1000 }));
  await server.start();
  const running = opened.move();
  return {
    baseUrl: server.info.uri,
    port: Number(server.info.port),
    db,
    databaseUrl,
    /** What it serves. */
    routes: () =>
      server.table().map(({ method, path }) => ({ method: method.toUpperCase(), path })),
    /** A new organization with credits and a key, and its way to call the API. */
    async organization(credits = 1000, requestsPerMinute?: number) {
      const organization = await openOrganization(db, credits, requestsPerMinute);
      return { ...organization, ...createCaller(server.info.uri, organization.apiKey) };
    },
    /** A test key for the sandbox of an organization, and its way to call the API. */
    async sandboxOf(live: Organization) {
      const sandbox = await openTestKey(db, live);
      return { ...sandbox, ...createCaller(server.info.uri, sandbox.apiKey) };
    },
    /** The ids of an organization's requests that are not final. */
    async openRequests(organizationId: string): Promise<string[]> {
      const rows = await db.drizzle
        .select({ id: requests.id })
        .from(requests)
        .where(
          and(eq(requests.organizationId, organizationId), isNull(requests.settledAt)),
        );
      return rows.map((row) => row.id);
    },
    stop: () => running.disposeAsync(),
  };
}

export type Api = Awaited<ReturnType<typeof startApi>>;
export type ApiClient = Awaited<ReturnType<Api['organization']>>;

/**
 * The whole service in this process: real PostgreSQL, real Temporal, real sockets; vendor and
 * receiver at the edge.
 */
export async function startStack(options: StackOptions = {}) {
  installTestRuntime();
  const {
    simulatorSpeed = 20,
    apiTemporalAddress,
    onLog,
    providers,
    registry,
    allSources = false,
    ...others
  } = options;
  const {
    spendingSettings,
    vendors = providers?.map((vendor) => vendorSource(vendor)),
    rocketReach,
    reacherRates,
    elsewhere,
    time,
    ...settings
  } = others;
  const log = logOf(onLog);
  await using opened = new AsyncDisposableStack();
  const existing = {
    address: elsewhere?.temporalAddress ?? testSetting('TEST_TEMPORAL_ADDRESS'),
  };
  const environment =
    time?.environment ??
    (await TestWorkflowEnvironment.createFromExistingServer(existing));
  opened.defer(() => environment.teardown());
  const { address, client } = environment;
  const dir = temporaryFolder((remove) => opened.defer(remove));
  const { db, url: databaseUrl } = opened.use(await openTestDatabase());
  if (time) opened.defer(await time.lead(databaseUrl));
  const workerDb = openDatabase({
    url: asRole(databaseUrl, 'worker'),
    poolSize: 24,
    applicationName: 'test worker',
    secretKeys: SECRET_KEYS,
  });
  opened.defer(() => workerDb.close());
  if (allSources) await importSample(databaseUrl, dir);
  const taskQueue = elsewhere?.taskQueue ?? `enrichment-${databaseUrl.split('_').at(-1)}`;
  const simulator = await createSimulator({
    port: 0,
    speed: simulatorSpeed,
    apiKey: API_KEY,
  });
  opened.defer(() => simulator.close());
  const receiver = await startReceiver(dir);
  opened.defer(() => receiver.close());
  const dns = await startDns();
  opened.defer(() => dns.close());

  const sourcesFile = join(dir, 'sources.json');
  writeFileSync(
    sourcesFile,
    JSON.stringify(sourcesOf({ allSources, rocketReach, reacherRates })),
  );
  const sourceEnvironment = {
    ...settingsOf(simulator, allSources),
    SOURCES_FILE: sourcesFile,
  };
  const config: Config = {
    ...loadConfig({ DATABASE_URL: databaseUrl, ...sourceEnvironment }),
    ...HERE,
    ...(time ? {} : SHORT_TIMES),
    dnsServers: [dns.address],
    webhookCaFile: receiver.caFile,
    webhookOpenCidrs: ['127.0.0.0/8', '::1/128'],
    ...settings,
  };
  let worker: { stop(): Promise<void> } | null = null;
  opened.defer(() => worker?.stop());
  // The time-skipping server has no Schedules, and registers search attributes by itself.
  if (!time) {
    await keepNamespace(client, taskQueue, 3_600_000, log);
    opened.defer(() => client.schedule.getHandle(reverifyScheduleId(taskQueue)).delete());
  }
  const names = createNames(config.dnsServers);
  const { greylistMs, ...sources } = createSources(config, workerDb, names, log);
  const rules = { ...rulesOf(config), greylistMs };
  const deps = {
    ...{ db: workerDb, log, post: postOf(config, names) },
    ...sources,
    ...(vendors ? { vendors } : {}),
    ...(registry ? { registry } : {}),
    ...(spendingSettings ? { spending: createSpending(workerDb, spendingSettings) } : {}),
    rules: time ? rules : { ...rules, ...SHORT_RULES },
  };
  const control = createControl(client, taskQueue);
  const bundle = await loadBundle(testSetting('TEST_WORKFLOW_BUNDLE'));
  /**
   * @param code of the workflows, in place of ours
   * @returns one step of its part in which version is current
   */
  const startWorker = async (code = bundle.code) => {
    const ending = new AbortController();
    const { signal } = ending;
    // Its rounds follow the machine's clock, so a test with skipped time makes them itself.
    const sweeping = time
      ? null
      : runReconciler({ ...deps, control }, config.sweepIntervalMs, signal);
    const version = versionOf(taskQueue, code);
    const isVersioned = !time;
    const rollout = createRollout({
      db: workerDb,
      client,
      log,
      taskQueue,
      version,
      isVersioned,
      automatic: true,
    });
    const workers = await startWorkers({
      ...{ connection: environment.nativeConnection, client, taskQueue, deps },
      version: isVersioned ? version : null,
      workflowBundle: { code },
      lookupSlots: config.lookupSlots,
    });
    await rollout.begin();
    worker = {
      async stop() {
        ending.abort();
        await Promise.all([workers.stop(), rollout.leave(), sweeping]);
      },
    };
    return rollout.step;
  };
  const api = await startApi({
    ...config,
    taskQueue,
    temporalAddress: apiTemporalAddress ?? address,
    onLog,
  });
  opened.defer(() => api.stop());
  if (!elsewhere) await startWorker();
  const running = opened.move();

  return {
    ...api,
    db,
    client,
    taskQueue,
    simulator,
    receiver,
    /** As the worker has it. */
    workerDb,
    /** What `deploy/worker.ts` needs to work for this stack. */
    workerEnvironment: {
      DATABASE_URL: asRole(databaseUrl, 'worker'),
      TEMPORAL_ADDRESS: address,
      TASK_QUEUE: taskQueue,
      SECRETS_KEY,
      ...sourceEnvironment,
      DNS_SERVERS: dns.address,
      WEBHOOK_CA_FILE: receiver.caFile,
      WEBHOOK_OPEN_CIDRS: '127.0.0.0/8',
      WORKFLOW_BUNDLE: testSetting('TEST_WORKFLOW_BUNDLE'),
    },
    async stopWorker() {
      await worker?.stop();
    },
    startWorker,
    /** Makes one round of the reconciler. Returns what it did. */
    async reconcile() {
      const signal = new AbortController().signal;
      const refunded = await keepBooks({ ...deps, control }, signal);
      return { refunded, ...(await tendWorkflows({ ...deps, control }, signal)) };
    },
    stop: () => running.disposeAsync(),
  };
}

/** The simulated vendors as an operator would configure real ones. */
function settingsOf({ urls }: Simulator, allSources: boolean) {
  const settings = sourceSettings(urls, API_KEY);
  const { ROCKETREACH_URL = '', ROCKETREACH_API_KEY = '' } = settings;
  return { ...(allSources ? settings : {}), ROCKETREACH_URL, ROCKETREACH_API_KEY };
}

/** The rates of the real ones would only slow the tests down. */
function sourcesOf({ allSources, rocketReach, reacherRates = FAST }: StackOptions) {
  const { verifiers, ...simulated } = allSources ? SIMULATED : {};
  return {
    ...simulated,
    vendors: {
      rocketreach: { rates: FAST, ...rocketReach },
      fullenrich: { rates: FAST, poll: '100ms' },
    },
    verifiers: { ...verifiers, reacher: { rates: reacherRates } },
  };
}

const FAST = ['10000/1s'];

/** A vendor without limits, waited for as long as there is time. */
export function vendorSource(
  vendor: Vendor,
  rest: Partial<Omit<VendorSource, 'vendor'>> = {},
): VendorSource {
  const limits = { rates: [], dailyCredits: null };
  return {
    vendor,
    types: vendor.gives,
    mayStore: true,
    capMs: 600_000,
    limits,
    dollarsPerCredit: null,
    ...rest,
  };
}

export type Stack = Awaited<ReturnType<typeof startStack>>;
