import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Client, Connection, WorkflowNotFoundError } from '@temporalio/client';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { and, eq, isNull } from 'drizzle-orm';
import type { VendorSource } from '../../activities/deps.ts';
import { createNames } from '../../activities/http/names.ts';
import type { Registry } from '../../activities/person/registry.ts';
import { createSpending, type SpendingSettings } from '../../activities/spending.ts';
import type { Vendor } from '../../activities/vendors/vendor.ts';
import type { SecretKey } from '../../db/accounts/secrets.ts';
import { openDatabase } from '../../db/connection/client.ts';
import { newProcessId, noteStopped, noteWorker } from '../../db/operations/workers.ts';
import { requests } from '../../db/schema.ts';
import {
  type ApiConfig,
  type Config,
  loadApiConfig,
  loadConfig,
} from '../../deploy/config/config.ts';
import { createApi } from '../../deploy/config/create-api.ts';
import { createSources } from '../../deploy/config/sources.ts';
import { mailOf, postOf, rulesOf } from '../../deploy/config/worker.ts';
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
  BUSY_MS,
  openTestDatabase,
  SECRET_KEYS,
  SECRETS_KEY,
  type TestDatabase,
  temporaryFolder,
  testSetting,
  travel,
} from './database.ts';
import {
  createCaller,
  eventually,
  type Organization,
  openOrganization,
  openTestKey,
} from './organization.ts';
import { startReceiver } from './receiver.ts';
import { installTestRuntime, quiet } from './runtime.ts';
import { SITE_SETTINGS } from './site.ts';
import type { SkippedTime } from './skipped-time.ts';

/**
 * Settings of an API process, with the servers around it. Times may be shorter than operators can
 * set them.
 */
export interface ApiOptions extends Partial<ApiConfig> {
  /** The time limit for its calls to PostgreSQL. */
  readonly deadlineMs?: number | undefined;
  /** The number of its connections to PostgreSQL. */
  readonly poolSize?: number;
  /** How long a page waits for a test event. It is long by default, because machines are busy. */
  readonly testEventMs?: number;
  /** Receives each log line, as JSON text, at the lowest level. */
  readonly onLog?: ((line: string) => void) | undefined;
  readonly temporalAddress?: string;
  readonly taskQueue?: string;
}

export interface StackOptions extends Partial<ApiConfig> {
  readonly simulatorSpeed?: number;
  /** A Temporal address for the API at which no server runs. */
  readonly apiTemporalAddress?: string;
  readonly onLog?: ApiOptions['onLog'];
  /** Vendors to call instead of the simulated ones. */
  readonly providers?: readonly Vendor[];
  /** Vendors with their settings, to call instead of all others. */
  readonly vendors?: readonly VendorSource[];
  /** Replaces `BUSY_LIMITS`, for receivers that never respond. */
  readonly attemptLimits?: { readonly connectMs: number; readonly totalMs: number };
  /** Replaces the settings about spending in the sources file. */
  readonly spendingSettings?: SpendingSettings;
  /** The registry to call instead of the simulated one. */
  readonly registry?: Registry;
  /**
   * If true, all simulated vendors, Reacher, and the registry are configured, and the sample of
   * NPPES is imported. Otherwise only RocketReach is configured.
   */
  readonly allSources?: boolean;
  /** Further settings of RocketReach, as an operator would give them in the sources file. */
  readonly rocketReach?:
    | {
        readonly wait?: string;
        readonly call?: string;
        readonly rates?: readonly string[];
      }
    | undefined;
  /**
   * The rate limits of Reacher, as an operator would give them in the sources file. None is reached
   * by default.
   */
  readonly reacherRates?: readonly string[] | undefined;
  /**
   * Uses another Temporal than the runner's, and starts no worker, for tests that run
   * `deploy/worker.ts` as a process.
   */
  readonly elsewhere?: { readonly temporalAddress: string; readonly taskQueue: string };
  /**
   * Replaces the runner's Temporal. All settings then have the values of production. It stops with
   * the stack.
   */
  readonly time?: SkippedTime;
  /** True if the test sets PostgreSQL's clock with the stack's `clock`. */
  readonly travels?: boolean;
  /** A migrated database to use instead of a new one. It stays when the stack stops. */
  readonly database?: TestDatabase;
}

const API_KEY = 'test-rocketreach-key';
/** Replaces settings of production, because many stacks run on one machine. */
const HERE = { apiHost: '127.0.0.1', apiPort: 0, lookupSlots: 100 };
/** Replaces the usual times, because these tests run in real time. */
const SHORT_TIMES = {
  lookupTimeoutMs: 60_000,
  // On a busy machine, the sweep starts batches whose workflows Temporal started too slowly.
  sweepIntervalMs: 2000,
  webhookScheduleMs: [0, 100, 200, 300],
  webhookLongestRestMs: 300,
};
/**
 * The limits of a webhook attempt on a busy machine, in milliseconds. They are less than the lease
 * of a delivery (`LEASE_MS` in db/webhooks/admission.ts).
 */
const BUSY_LIMITS = { connectMs: 20_000, totalMs: 20_000 };
const SHORT_RULES = {
  greylistMs: 1000,
  sweep: { startAfterMs: 500, checkEveryMs: 1000 },
};
const logOf = (onLog: ApiOptions['onLog']) =>
  onLog ? createLog('test', 'trace', { write: onLog }) : quiet;

/**
 * Starts the API without a worker, a vendor, or a receiver. HTTP, PostgreSQL, and Temporal are
 * real, but no worker runs the workflows, so batches stay as the submit left them. Creates a
 * migrated database if none is given.
 */
export async function startApi(options: ApiOptions = {}) {
  const {
    deadlineMs = BUSY_MS,
    poolSize = 20,
    testEventMs = BUSY_MS,
    onLog,
    temporalAddress,
    taskQueue = 'nobody',
    ...settings
  } = options;
  // Closed in reverse order, by `stop` or if a later step fails.
  await using opened = new AsyncDisposableStack();
  const databaseUrl = settings.databaseUrl ?? opened.use(await openTestDatabase()).url;
  const open = (
    url: string,
    applicationName: string,
    rest: { readonly deadlineMs: number; readonly secretKeys?: readonly SecretKey[] },
  ) => {
    const db = openDatabase({ url, poolSize, applicationName, ...rest });
    opened.defer(() => db.close());
    return db;
  };
  const db = open(databaseUrl, 'test', {
    secretKeys: SECRET_KEYS,
    deadlineMs: BUSY_MS,
  });
  const config = {
    ...loadApiConfig({ DATABASE_URL: databaseUrl, SECRETS_KEY, ...SITE_SETTINGS }),
    ...HERE,
    ...SHORT_TIMES,
    ...settings,
  };
  const { secretKeys } = config;
  const itsDb = open(asRole(databaseUrl, 'api'), 'test api', { deadlineMs, secretKeys });
  const address = temporalAddress ?? testSetting('TEST_TEMPORAL_ADDRESS');
  const connection = Connection.lazy({ address });
  opened.defer(() => connection.close());
  const client = new Client({ connection });
  const trouble = async () =>
    (await temporalTrouble({ connectionOptions: { address } }))?.message ?? null;
  const server = await createApi(config, {
    db: itsDb,
    log: logOf(onLog),
    client,
    taskQueue,
    trouble,
    testEventMs,
  });
  opened.defer(() => server.stop({ timeout: BUSY_MS }));
  await server.start();
  const running = opened.move();
  return {
    baseUrl: server.info.uri,
    port: Number(server.info.port),
    db,
    databaseUrl,
    /** Lists the routes that the API serves. */
    routes: () =>
      server.table().map(({ method, path }) => ({ method: method.toUpperCase(), path })),
    /**
     * Opens an organization with credits and a key, and returns it with functions that call the
     * API.
     */
    async organization(credits = 1000, requestsPerMinute?: number) {
      const organization = await openOrganization(db, credits, requestsPerMinute);
      return { ...organization, ...createCaller(server.info.uri, organization.apiKey) };
    },
    /**
     * Issues a test key for an organization's sandbox, and returns it with functions that call the
     * API.
     */
    async sandboxOf(live: Organization) {
      const sandbox = await openTestKey(db, live);
      return { ...sandbox, ...createCaller(server.info.uri, sandbox.apiKey) };
    },
    /** Returns the ids of an organization's requests that are not final. */
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
 * Starts the whole service in this process. PostgreSQL, Temporal, and sockets are real. Only
 * vendors and receivers are simulated.
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
    attemptLimits = BUSY_LIMITS,
    elsewhere,
    time,
    travels = false,
    database,
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
  const { db, url: databaseUrl } = database ?? opened.use(await openTestDatabase());
  if (time) opened.defer(await time.lead(databaseUrl));
  const clock = travels ? await travel(databaseUrl) : null;
  opened.defer(() => clock?.stop());
  const workerDb = openDatabase({
    url: asRole(databaseUrl, 'worker'),
    poolSize: 24,
    applicationName: 'test worker',
    secretKeys: SECRET_KEYS,
    deadlineMs: BUSY_MS,
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
    ...loadConfig({ DATABASE_URL: databaseUrl, SECRETS_KEY, ...sourceEnvironment }),
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
    ...{ db: workerDb, log, post: postOf(config, names, attemptLimits) },
    mail: mailOf(config),
    ...sources,
    ...(vendors ? { vendors } : {}),
    ...(registry ? { registry } : {}),
    ...(spendingSettings ? { spending: createSpending(workerDb, spendingSettings) } : {}),
    rules: time ? rules : { ...rules, ...SHORT_RULES },
  };
  const control = createControl(client, taskQueue);
  const bundle = await loadBundle(testSetting('TEST_WORKFLOW_BUNDLE'));
  /**
   * @param code the workflow bundle, by default this build's
   * @returns the function that stores the worker's heartbeat, and takes one step of its rollout
   */
  const startWorker = async (code = bundle.code) => {
    const ending = new AbortController();
    const { signal } = ending;
    // The reconciler's rounds follow the machine's clock. A test with skipped time calls
    // `reconcile` instead.
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
    const { namespace } = client.options;
    const { buildId } = version;
    const me = { id: newProcessId(), namespace, taskQueue, buildId };
    await noteWorker(workerDb, me);
    await rollout.begin();
    worker = {
      async stop() {
        ending.abort();
        await Promise.all([workers.stop(), noteStopped(workerDb, me.id), sweeping]);
      },
    };
    return async () => {
      await noteWorker(workerDb, me);
      return await rollout.step();
    };
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
  const reconcile = async () => {
    const signal = new AbortController().signal;
    const refunded = await keepBooks({ ...deps, control }, signal);
    return { refunded, ...(await tendWorkflows({ ...deps, control }, signal)) };
  };

  return {
    ...api,
    db,
    client,
    taskQueue,
    simulator,
    receiver,
    /** PostgreSQL's clock; null without the option `travels`. */
    clock,
    /** The worker's pool, with the rights of a worker. */
    workerDb,
    /** The environment with which `deploy/worker.ts` works for this stack. */
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
    /** Runs one round of the reconciler, and returns the counts of its work. */
    reconcile,
    /** Returns the build that new workflows start on, or null if no version is current. */
    async currentBuild(): Promise<string | null> {
      const { workerDeploymentInfo } =
        await client.workflowService.describeWorkerDeployment({
          namespace: client.options.namespace,
          deploymentName: `npi-email-${taskQueue}`,
        });
      const routing = workerDeploymentInfo?.routingConfig;
      return routing?.currentDeploymentVersion?.buildId ?? null;
    },
    /**
     * Returns the workflow of a batch or an upload. If the API could not start it in time, starts it.
     */
    async startedWorkflow(id: string) {
      const handle = client.workflow.getHandle(id);
      await eventually(async () => {
        const isThere = await handle.describe().catch((error) => {
          if (!(error instanceof WorkflowNotFoundError)) throw error;
        });
        if (!isThere) await reconcile();
        return isThere ?? null;
      });
      return handle;
    },
    stop: () => running.disposeAsync(),
  };
}

/** Returns environment variables for the simulated vendors, as for real ones. */
function settingsOf({ urls }: Simulator, allSources: boolean) {
  const settings = sourceSettings(urls, API_KEY);
  const { ROCKETREACH_URL = '', ROCKETREACH_API_KEY = '' } = settings;
  return { ...(allSources ? settings : {}), ROCKETREACH_URL, ROCKETREACH_API_KEY };
}

/**
 * Returns the sources file. Its rates are high, because the real ones would slow the tests down.
 */
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

/** Returns a vendor without limits, for which a lookup waits up to ten minutes. */
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
