import { randomBytes } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { OperatorProblem } from '../../db/errors.ts';
import { claimForLocalStack, openUsers } from '../../db/local-stack.ts';
import { migrate } from '../../db/migrate.ts';
import { type LocalConfig, loadOperatorConfig } from '../config/config.ts';
import { temporalTarget } from '../temporal/client.ts';
import { startDns } from './dns.ts';
import { readFacts, type StackFacts } from './facts.ts';
import { startPostgres } from './postgres.ts';
import { claimPort, LOOPBACK, launch } from './processes.ts';
import { cacheFolder, findTemporalCli, findTemporalServer } from './programs.ts';
import { startReceiver } from './receiver.ts';
import { importSample } from './sample.ts';
import { createSimulator, SIMULATED, sourceSettings } from './simulator.ts';
import { ensureNamespace, startTemporal, startTemporalServer } from './temporal.ts';
import { openTenant } from './tenant.ts';

export type Stack = Awaited<ReturnType<typeof startStack>>;

export interface StackOptions {
  /** The folder for data, logs and certificates. */
  readonly dir: string;
  /** 0 for any free port. */
  readonly apiPort: number;
  /** The CLI's dev server, or the production server on the stack's own PostgreSQL. */
  readonly temporal: 'dev' | 'server';
  readonly given: LocalConfig;
  readonly say: (line: string) => void;
  readonly signal: AbortSignal;
}

/** The sources file, with waits that are short enough for a terminal. */
const SOURCES = {
  ...SIMULATED,
  vendors: { rocketreach: { wait: '15s', call: '10s' }, fullenrich: { poll: '2s' } },
  greylist_wait: '10s',
};
/** Preferred ports, used unless they are taken. */
const USUAL = { postgres: 5442, temporal: 7233, ui: 8233, simulator: 8090, receiver: 8443 };

const DATABASE_IN_USE =
  'The database of DATABASE_URL is in use, and the local stack did not make it. The simulated vendors would give its ' +
  'requests invented emails and charge for them. Unset DATABASE_URL, so that the stack starts its own PostgreSQL, or ' +
  'name an empty database.';

const NOT_OURS =
  'With --temporal server, the stack starts its own PostgreSQL and Temporal. Unset DATABASE_URL and TEMPORAL_ADDRESS.';

/**
 * Starts every part in order. If one fails, stops the started ones in reverse order.
 * @throws {OperatorProblem} in one sentence
 */
export async function startStack(options: StackOptions) {
  const { stop, ...parts } = createParts(join(options.dir, 'logs'));
  try {
    return { ...(await bringUp(options, parts)), failed: parts.failed, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

type Parts = Omit<ReturnType<typeof createParts>, 'stop'>;

/** The running parts, in the order of their start. */
function createParts(logs: string) {
  const running = new AsyncDisposableStack();
  const death = Promise.withResolvers<never>();
  // Prevents that a rejection ends this process while no code waits for it.
  death.promise.catch(() => {});
  return {
    /** Rejects with one sentence when a process of the stack dies. */
    failed: death.promise,
    /** @param exited fails the stack when it resolves unexpectedly */
    add(name: string, stop: () => Promise<void>, exited?: Promise<string>) {
      // Stops a part at once if it was still starting when another part failed.
      if (running.disposed) void stop();
      else running.defer(stop);
      void exited?.then((ending) => {
        if (running.disposed) return;
        death.reject(
          new OperatorProblem(`${name} ended unexpectedly (${ending}); see its log in ${logs}.`),
        );
      });
    },
    stop: () => running.disposeAsync(),
  };
}

async function bringUp(options: StackOptions, parts: Parts) {
  const { dir, given, say, signal } = options;
  const onServer = options.temporal === 'server';
  if (onServer && (given.databaseUrl ?? given.temporalAddress) !== null)
    throw new OperatorProblem(NOT_OURS);
  const logs = join(dir, 'logs');
  await mkdir(logs, { recursive: true });
  const earlier = readFacts(dir);
  const secretsKey =
    given.environment.SECRETS_KEY ??
    earlier?.secrets_key ??
    `v1:${randomBytes(32).toString('base64')}`;
  const ports: Record<string, number> = { ...earlier?.ports };
  const claims: { release(): void }[] = [];
  /**
   * Returns the port of the last start, or the preferred one, or any free one. Only the API must
   * get the requested port.
   */
  const portOf = async (name: keyof typeof USUAL) => {
    const claim = await claimPort(ports[name] ?? USUAL[name], name).catch(() => claimPort(0, name));
    claims.push(claim);
    ports[name] = claim.port;
    return claim.port;
  };
  const part = async <T>(name: string, begin: () => Promise<T>): Promise<T> => {
    signal.throwIfAborted();
    const begun = performance.now();
    const result = await Promise.race([begin(), parts.failed]);
    say(`  ${name.padEnd(18)} ${((performance.now() - begun) / 1000).toFixed(1)} s`);
    return result;
  };

  const apiClaim = await claimPort(options.apiPort, 'the API', '--port');
  claims.push(apiClaim);
  say('Starting the local stack:');

  // Comes first, because it may take minutes or fail.
  const search = {
    cacheDir: cacheFolder(given.cacheHome),
    onProgress: (line: string) => say(`    ${line}`),
  };
  const programs =
    given.temporalAddress !== null
      ? null
      : onServer
        ? await part('Temporal server', () => findTemporalServer(search))
        : await part('Temporal CLI', () => findTemporalCli(search));
  const database = await part('PostgreSQL', async () => {
    if (given.databaseUrl !== null) return { url: given.databaseUrl };
    const server = await startPostgres({
      dataDir: join(dir, 'postgres'),
      port: await portOf('postgres'),
      onLog: logTo(logs, 'postgres'),
    });
    parts.add('PostgreSQL', server.stop, server.exited);
    return server;
  });
  const { stackId, tenant, urls } = await part('migrations', async () => {
    const stackId = await claimForLocalStack(database.url, given.databaseUrl === null);
    if (stackId === null) throw new OperatorProblem(DATABASE_IN_USE);
    await migrate(database.url);
    // Users are only created on the stack's own server.
    const { url } = database;
    const urls =
      given.databaseUrl === null ? await openUsers(url) : { api: url, worker: url, operator: url };
    const config = loadOperatorConfig({ DATABASE_URL: urls.operator, SECRETS_KEY: secretsKey });
    return { stackId, urls, tenant: await openTenant(config, earlier) };
  });
  await part('sample of NPPES', () => importSample(urls.operator, dir));

  // Uses one namespace per database, so that a worker never gets tasks about data in another
  // database.
  const temporal = await part('Temporal', async () => {
    const own = `local-stack-${stackId}`;
    if (programs === null) {
      const target = temporalTarget(given.environment);
      await ensureNamespace(target, own);
      return { address: target.connectionOptions.address ?? '', namespace: own, uiUrl: null };
    }
    const common = {
      namespace: onServer ? own : 'default',
      port: await portOf('temporal'),
      uiPort: await portOf('ui'),
      onLog: logTo(logs, 'temporal'),
    };
    const folder = join(dir, 'temporal');
    await mkdir(folder, { recursive: true });
    const server =
      typeof programs === 'string'
        ? await startTemporal({ ...common, cli: programs, dbFile: join(folder, `${stackId}.db`) })
        : await startTemporalServer({
            ...common,
            programs,
            postgresUrl: database.url,
            dir: folder,
          });
    parts.add('Temporal', server.stop, server.exited);
    return { ...server, namespace: common.namespace };
  });

  const { simulator, receiver, dns } = await part('vendors, receiver', async () => {
    const { vendorKey: apiKey, webhookSecrets } = tenant;
    const simulator = await createSimulator({ port: await portOf('simulator'), speed: 1, apiKey });
    parts.add('the simulator', simulator.close);
    const receiver = await startReceiver(
      await portOf('receiver'),
      join(dir, 'receiver'),
      webhookSecrets,
    );
    parts.add('the receiver', receiver.close);
    const dns = await startDns();
    parts.add('the name server', dns.close);
    return { simulator, receiver, dns };
  });

  const sourcesFile = join(dir, 'sources.json');
  await writeFile(sourcesFile, `${JSON.stringify(SOURCES, null, 2)}\n`);
  const environment = {
    LOOKUP_TIMEOUT: '1m',
    API_DRAIN_DELAY: '0s',
    ...given.environment,
    // Messages that a process is ready are logged at this level. The workers decide which version
    // is current.
    LOG_LEVEL: ['debug', 'trace'].includes(given.environment.LOG_LEVEL ?? '')
      ? given.environment.LOG_LEVEL
      : 'info',
    WORKER_ROLLOUT: 'automatic',
    SECRETS_KEY: '',
    TEMPORAL_ADDRESS: temporal.address,
    TEMPORAL_NAMESPACE: temporal.namespace,
    ...(temporal.uiUrl !== null && { TEMPORAL_UI_URL: temporal.uiUrl }),
    API_HOST: LOOPBACK,
    API_PORT: String(apiClaim.port),
    ...sourceSettings(simulator.urls, tenant.vendorKey),
    SOURCES_FILE: sourcesFile,
    DNS_SERVERS: dns.address,
    WEBHOOK_CA_FILE: receiver.caFile,
    WEBHOOK_OPEN_CIDRS: '127.0.0.0/8',
  };
  await part('worker, API', async () => {
    const worker = { ...environment, DATABASE_URL: urls.worker, SECRETS_KEY: secretsKey };
    // The API doesn't serve metrics, because two processes on one machine can't share the port.
    const api = { ...environment, DATABASE_URL: urls.api, METRICS_PORT: '' };
    await Promise.all([
      startProcess('worker', worker, logs, parts),
      startProcess('api', api, logs, parts),
    ]);
  });
  for (const claim of claims) claim.release();
  const facts: StackFacts = {
    base_url: `http://${LOOPBACK}:${apiClaim.port}`,
    api_key: tenant.apiKey,
    test_api_key: tenant.sandbox.apiKey,
    temporal_address: temporal.address,
    temporal_namespace: temporal.namespace,
    temporal_ui: temporal.uiUrl,
    database_url: urls.operator,
    secrets_key: secretsKey,
    simulator_url: simulator.urls.rocketreach,
    receiver_url: receiver.url,
    webhook_secrets: tenant.webhookSecrets,
    organization_id: tenant.organizationId,
    ports,
  };
  return {
    facts,
    /** The effective `LOOKUP_TIMEOUT`. */
    lookupTimeout: environment.LOOKUP_TIMEOUT,
  };
}

/**
 * Starts a production entry point as a child process with a log file. Returns once the log says
 * that it is ready.
 */
async function startProcess(
  name: 'api' | 'worker',
  env: NodeJS.ProcessEnv,
  logs: string,
  parts: Parts,
) {
  const log = logTo(logs, name);
  const said = Promise.withResolvers<void>();
  const server = launch({
    name: `the ${name}`,
    command: process.execPath,
    args: [fileURLToPath(new URL(`../${name}.ts`, import.meta.url))],
    env,
    onLine(line) {
      log(line);
      if (line.includes(`"${name} ready"`)) said.resolve();
    },
  });
  parts.add(`the ${name}`, server.stop, server.exited);
  await said.promise;
}

function logTo(logs: string, name: string): (line: string) => void {
  const file = createWriteStream(join(logs, `${name}.log`), { flags: 'a' });
  return (line) => file.write(`${line}\n`);
}
