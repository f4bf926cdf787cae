import { randomBytes } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { OperatorProblem } from '../../db/connection/errors.ts';
import { claimForLocalStack, openUsers } from '../../db/operations/local-stack.ts';
import { migrate } from '../../db/operations/migrate.ts';
import { type LocalConfig, loadOperatorConfig } from '../config/config.ts';
import { LOCAL_RECEIVERS, readFacts, type StackFacts } from '../config/stack-facts.ts';
import { LOOPBACK } from '../ports.ts';
import { temporalTarget } from '../temporal/client.ts';
import { startDns } from './dns.ts';
import { logTo, Parts, Ports } from './parts.ts';
import { startPostgres } from './postgres.ts';
import { launch } from './processes.ts';
import { cacheFolder, findTemporalCli } from './programs.ts';
import { startReceiver } from './receiver.ts';
import { importSample } from './sample.ts';
import { createSimulator, SIMULATED, sourceSettings } from './simulator.ts';
import { ensureNamespace, startTemporal } from './temporal.ts';
import { openTenant, type Tenant } from './tenant.ts';

export type Stack = Awaited<ReturnType<typeof startStack>>;

export interface StackOptions {
  /** The folder for data, logs, and certificates. */
  readonly dir: string;
  /** The port of the API; 0 for any free port. */
  readonly apiPort: number;
  readonly given: LocalConfig;
  readonly say: (line: string) => void;
  readonly signal: AbortSignal;
}

/** The content of the sources file. Its waits are short, because a person waits for the results. */
const SOURCES = {
  ...SIMULATED,
  vendors: {
    rocketreach: { wait: '15s', call: '10s', rates: ['10/1s'] },
    fullenrich: { poll: '2s' },
    prospeo: { rates: ['5/1s'] },
  },
  greylist_wait: '10s',
};

const DATABASE_IN_USE =
  'The database of DATABASE_URL is in use, and the local stack did not make it. The simulated vendors would give its ' +
  'requests invented emails and charge for them. Unset DATABASE_URL, so that the stack starts its own PostgreSQL, or ' +
  'name an empty database.';

/**
 * Starts all parts of the stack in order. If one part fails, stops the parts that were started, in
 * reverse order.
 * @throws {OperatorProblem} with a message of one sentence, if a part does not start
 */
export async function startStack(options: StackOptions) {
  const parts = new Parts(join(options.dir, 'logs'));
  try {
    const { facts, lookupTimeout } = await bringUp(options, parts);
    return { facts, lookupTimeout, failed: parts.failed, stop: () => parts.stop() };
  } catch (error) {
    await parts.stop();
    throw error;
  }
}

/** The parameters that all steps of a start share. */
interface Start {
  readonly options: StackOptions;
  readonly parts: Parts;
  readonly ports: Ports;
  /** The content of `stack.json` from the previous start, or null if there wasn't one. */
  readonly earlier: StackFacts | null;
  /** The value of `SECRETS_KEY`. */
  readonly secretsKey: string;
}

async function bringUp(options: StackOptions, parts: Parts) {
  const { dir, given, say } = options;
  await mkdir(parts.logs, { recursive: true });
  const earlier = readFacts(dir);
  const ports = new Ports(earlier?.ports);
  const secretsKey =
    given.environment.SECRETS_KEY ?? earlier?.secrets_key ?? newSecretsKey();
  const start: Start = { options, parts, ports, earlier, secretsKey };
  const apiPort = await ports.claimForApi(options.apiPort);
  say('Starting the local stack:');

  // We find Temporal before all other steps, because this may take minutes or fail.
  const cli = await findTemporal(start);
  const database = await startPart(start, 'PostgreSQL', () => startDatabase(start));
  const prepared = await startPart(start, 'migrations', () =>
    prepare(start, database.url),
  );
  const { stackId, tenant, urls } = prepared;
  await startPart(start, 'sample of NPPES', () => importSample(urls.operator, dir));
  const temporal = await startPart(start, 'Temporal', () =>
    startOurTemporal(start, cli, stackId),
  );
  const world = await startPart(start, 'vendors, receiver', () =>
    startWorld(start, tenant),
  );

  const sourcesFile = join(dir, 'sources.json');
  await writeFile(sourcesFile, `${JSON.stringify(SOURCES, null, 2)}\n`);
  const baseUrl = `http://${LOOPBACK}:${apiPort}`;
  const environment = {
    ...environmentOf(given, temporal),
    API_PORT: String(apiPort),
    PUBLIC_URL: given.environment.PUBLIC_URL ?? baseUrl,
    SUPPORT_EMAIL: given.environment.SUPPORT_EMAIL ?? 'support@example.com',
    ...sourceSettings(world.simulator.urls, tenant.vendorKey),
    SOURCES_FILE: sourcesFile,
    DNS_SERVERS: world.dns.address,
    WEBHOOK_CA_FILE: world.receiver.caFile,
  };
  await startPart(start, 'worker, API', () => startProcesses(start, environment, urls));
  ports.release();
  const facts: StackFacts = {
    base_url: baseUrl,
    api_key: tenant.apiKey,
    test_api_key: tenant.sandbox.apiKey,
    temporal_address: temporal.address,
    temporal_namespace: temporal.namespace,
    temporal_ui: temporal.uiUrl,
    database_url: urls.operator,
    secrets_key: secretsKey,
    simulator_url: world.simulator.urls.rocketreach,
    receiver_url: world.receiver.url,
    webhook_secrets: tenant.webhookSecrets,
    organization_id: tenant.organizationId,
    ports: ports.chosen,
  };
  return {
    facts,
    /** The value of `LOOKUP_TIMEOUT` that the service uses. */
    lookupTimeout: environment.LOOKUP_TIMEOUT,
  };
}

function newSecretsKey(): string {
  return `v1:${randomBytes(32).toString('base64')}`;
}

/** Runs one step of the start, and prints how long it took. */
async function startPart<T>(
  { options, parts }: Start,
  name: string,
  begin: () => Promise<T>,
): Promise<T> {
  options.signal.throwIfAborted();
  const begun = performance.now();
  const result = await Promise.race([begin(), parts.failed]);
  const seconds = (performance.now() - begun) / 1000;
  options.say(`  ${name.padEnd(18)} ${seconds.toFixed(1)} s`);
  return result;
}

/**
 * Returns the path of Temporal's CLI, or null if the operator's own Temporal is used
 * (`TEMPORAL_ADDRESS`).
 */
async function findTemporal(start: Start): Promise<string | null> {
  const { given, say } = start.options;
  if (given.temporalAddress !== null) return null;
  const search = {
    cacheDir: cacheFolder(given.cacheHome),
    onProgress: (line: string) => say(`    ${line}`),
  };
  return await startPart(start, 'Temporal CLI', () => findTemporalCli(search));
}

async function startDatabase({
  options,
  parts,
  ports,
}: Start): Promise<{ readonly url: string }> {
  const { databaseUrl } = options.given;
  if (databaseUrl !== null) return { url: databaseUrl };
  const server = await startPostgres({
    dataDir: join(options.dir, 'postgres'),
    port: await ports.claim('postgres'),
    onLog: logTo(parts.logs, 'postgres'),
  });
  parts.add('PostgreSQL', server.stop, server.exited);
  return server;
}

/**
 * Creates the tables, the database users, and the organization of the stack.
 * @throws {OperatorProblem} if the database contains other data
 */
async function prepare({ options, earlier, secretsKey }: Start, url: string) {
  const isOwnServer = options.given.databaseUrl === null;
  const stackId = await claimForLocalStack(url, isOwnServer);
  if (stackId === null) throw new OperatorProblem(DATABASE_IN_USE);
  await migrate(url);
  // Database users are only created on the stack's own server.
  const urls = isOwnServer
    ? await openUsers(url)
    : { api: url, worker: url, operator: url };
  const config = loadOperatorConfig({
    DATABASE_URL: urls.operator,
    SECRETS_KEY: secretsKey,
  });
  const tenant = await openTenant(config, earlier);
  return { stackId, urls, tenant };
}

/** The Temporal server and namespace in which the stack's workflows run. */
interface TemporalPlace {
  readonly address: string;
  readonly namespace: string;
  readonly uiUrl: string | null;
}

/**
 * Starts Temporal, or prepares the namespace on the operator's own Temporal. Each database of a
 * local stack has its own namespace, so that a worker never gets tasks about data in another
 * database.
 */
async function startOurTemporal(
  start: Start,
  cli: string | null,
  stackId: string,
): Promise<TemporalPlace> {
  const { options, parts, ports } = start;
  if (cli === null) {
    const namespace = `local-stack-${stackId}`;
    const target = temporalTarget(options.given.environment);
    await ensureNamespace(target, namespace);
    return { address: target.connectionOptions.address ?? '', namespace, uiUrl: null };
  }
  // The dev server has a separate file for each database, so all can use the same namespace name.
  const namespace = 'default';
  const dir = join(options.dir, 'temporal');
  await mkdir(dir, { recursive: true });
  const server = await startTemporal({
    cli,
    namespace,
    port: await ports.claim('temporal'),
    uiPort: await ports.claim('ui'),
    dbFile: join(dir, `${stackId}.db`),
    onLog: logTo(parts.logs, 'temporal'),
  });
  parts.add('Temporal', server.stop, server.exited);
  return { address: server.address, uiUrl: server.uiUrl, namespace };
}

/** Starts the simulated sources, the webhook receiver, and the name server. */
async function startWorld({ options, parts, ports }: Start, tenant: Tenant) {
  const simulator = await createSimulator({
    port: await ports.claim('simulator'),
    speed: 1,
    apiKey: tenant.vendorKey,
  });
  parts.add('the simulator', simulator.close);
  const receiverPort = await ports.claim('receiver');
  const receiverDir = join(options.dir, 'receiver');
  const receiver = await startReceiver(receiverPort, receiverDir, tenant.webhookSecrets);
  parts.add('the receiver', receiver.close);
  const dns = await startDns();
  parts.add('the name server', dns.close);
  return { simulator, receiver, dns };
}

/**
 * Returns the settings that the API and the worker share. The settings of sources, ports, and
 * databases are added later.
 */
function environmentOf({ environment }: LocalConfig, temporal: TemporalPlace) {
  const settings = {
    LOOKUP_TIMEOUT: '1m',
    API_DRAIN_DELAY: '0s',
    ...environment,
    LOG_LEVEL: logLevel(environment.LOG_LEVEL),
    // The workers make their version current, because a local stack has no operator who would do
    // it.
    WORKER_ROLLOUT: 'automatic',
    TEMPORAL_ADDRESS: temporal.address,
    TEMPORAL_NAMESPACE: temporal.namespace,
    API_HOST: LOOPBACK,
    WEBHOOK_OPEN_CIDRS: LOCAL_RECEIVERS,
  };
  if (temporal.uiUrl === null) return settings;
  return { ...settings, TEMPORAL_UI_URL: temporal.uiUrl };
}

/**
 * Returns the log level of the API and the worker. It is at least `info`, because `startProcess`
 * waits for a log line of that level.
 */
function logLevel(given: string | undefined): string {
  if (given === 'debug' || given === 'trace') return given;
  return 'info';
}

async function startProcesses(
  { parts, secretsKey }: Start,
  environment: NodeJS.ProcessEnv,
  urls: { readonly api: string; readonly worker: string },
): Promise<void> {
  const shared = { ...environment, SECRETS_KEY: secretsKey };
  const worker = { ...shared, DATABASE_URL: urls.worker };
  // Only the worker serves metrics, because two processes on one machine can't share the port.
  const api = { ...shared, DATABASE_URL: urls.api, METRICS_PORT: '' };
  await Promise.all([
    startProcess('worker', worker, parts),
    startProcess('api', api, parts),
  ]);
}

/**
 * Starts the API or the worker as a child process with a log file. Resolves when its log says that
 * it is ready.
 */
async function startProcess(
  name: 'api' | 'worker',
  env: NodeJS.ProcessEnv,
  parts: Parts,
): Promise<void> {
  const log = logTo(parts.logs, name);
  const ready = Promise.withResolvers<void>();
  const server = launch({
    name: `the ${name}`,
    command: process.execPath,
    args: [fileURLToPath(new URL(`../${name}.ts`, import.meta.url))],
    env,
    onLine(line) {
      log(line);
      if (line.includes(`"${name} ready"`)) ready.resolve();
    },
  });
  parts.add(`the ${name}`, server.stop, server.exited);
  await ready.promise;
}
