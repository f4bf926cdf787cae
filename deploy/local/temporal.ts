import { randomInt } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { OperatorProblem } from '../../db/errors.ts';
import { lazyClient, type TemporalTarget } from '../temporal/client.ts';
import { makeNamespace, SEARCH_ATTRIBUTE_WORDS } from '../temporal/namespace.ts';
import { temporalTrouble } from '../temporal/trouble.ts';
import { freePort, LOOPBACK, launch, launchOnPort, run, type ServerProcess } from './processes.ts';
import type { findTemporalServer } from './programs.ts';

/**
 * Divides task queues by fairness key, so that one customer's backlog does not delay the others.
 * Fairness needs the new matcher.
 */
const FAIRNESS = { 'matching.useNewMatcher': true, 'matching.enableFairness': true };

export interface TemporalOptions {
  readonly namespace: string;
  /** A loopback port. Defaults to a free one. */
  readonly port?: number;
  /** The port of the UI. Without it, no UI is started. */
  readonly uiPort?: number;
  /** Settings of the server, such as `{ 'matching.maxDeployments': 1000 }`. */
  readonly dynamicConfig?: Readonly<Record<string, number | boolean>>;
  readonly onLog?: (line: string) => void;
}

/** Returns the settings of a server: fairness, and the given ones. */
function dynamicConfigOf({ dynamicConfig }: TemporalOptions): [string, number | boolean][] {
  return Object.entries({ ...FAIRNESS, ...dynamicConfig });
}

export type Temporal = Awaited<ReturnType<typeof bringUp>>;

export interface DevServerOptions extends TemporalOptions {
  /** From `findTemporalCli`. */
  readonly cli: string;
  /** Stores the workflows; its folder must exist. Without a file they are kept in memory. */
  readonly dbFile?: string;
}

/**
 * Starts a Temporal dev server on loopback and returns once its namespace responds.
 * @throws {OperatorProblem} if a port is taken, or it does not start
 */
export async function startTemporal(options: DevServerOptions): Promise<Temporal> {
  const args = devServerArguments(options);
  return await bringUp(options, options.namespace, (port) =>
    launch({
      name: 'Temporal',
      command: options.cli,
      args: ['server', 'start-dev', '--ip', LOOPBACK, '--port', String(port), ...args],
      onLine: options.onLog,
    }),
  );
}

function devServerArguments(options: DevServerOptions): string[] {
  const { namespace, uiPort, dbFile } = options;
  const args = ['--namespace', namespace, '--log-level', 'error'];
  if (uiPort === undefined) {
    args.push('--headless');
  } else {
    args.push('--ui-ip', LOOPBACK, '--ui-port', String(uiPort));
  }
  if (dbFile !== undefined) args.push('--db-filename', dbFile);
  for (const attribute of SEARCH_ATTRIBUTE_WORDS) args.push('--search-attribute', attribute);
  for (const [key, value] of dynamicConfigOf(options)) {
    args.push('--dynamic-config-value', `${key}=${value}`);
  }
  return args;
}

export interface ServerOptions extends TemporalOptions {
  /** From `findTemporalServer`. */
  readonly programs: Awaited<ReturnType<typeof findTemporalServer>>;
  /**
   * A superuser of the stack's own PostgreSQL, where the databases `temporal` and
   * `temporal_visibility` are created.
   */
  readonly postgresUrl: string;
  /** The folder of the configuration, which contains the password. */
  readonly dir: string;
}

/**
 * Starts the Temporal server as one process on loopback, with PostgreSQL, and its UI. Returns once
 * the namespace responds.
 * @throws {OperatorProblem} if a port is taken, or it does not start
 */
export async function startTemporalServer(options: ServerOptions): Promise<Temporal> {
  const { programs, namespace, uiPort, onLog } = options;
  // The server would resolve a relative path from its root.
  const dir = resolve(options.dir);
  const postgres = new URL(options.postgresUrl);
  await mkdir(dir, { recursive: true });
  await makeTables(programs.sqlTool, postgres);
  const dynamicConfig = join(dir, 'dynamic.yaml');
  const settings = dynamicConfigOf(options).map(([key, value]) => [key, [{ value }]]);
  await writeFile(dynamicConfig, JSON.stringify(Object.fromEntries(settings)));
  const server = await bringUp(options, SYSTEM_NAMESPACE, async (port) => {
    const configuration = await serverConfiguration(postgres, port, dynamicConfig);
    const folder = await writeConfiguration(dir, 'temporal', configuration);
    return launchConfigured('temporal', programs.server, folder, onLog);
  });
  try {
    await ensureNamespace({ connectionOptions: { address: server.address } }, namespace);
    if (uiPort === undefined) return server;
    const folder = await writeConfiguration(dir, 'temporal-ui', {
      temporalGrpcAddress: server.address,
      host: LOOPBACK,
      port: uiPort,
      enableUi: true,
      defaultNamespace: namespace,
    });
    const ui = launchConfigured('temporal-ui', programs.ui, folder, onLog);
    return {
      ...server,
      exited: Promise.race([server.exited, ui.exited]),
      async stop() {
        await ui.stop();
        await server.stop();
      },
    };
  } catch (error) {
    await server.stop();
    throw error;
  }
}

/** Writes the configuration of a program. Returns its folder. */
async function writeConfiguration(dir: string, name: string, content: object): Promise<string> {
  const folder = join(dir, name);
  await mkdir(folder, { recursive: true });
  // JSON is valid YAML.
  const text = JSON.stringify(content, null, 2);
  await writeFile(join(folder, 'base.yaml'), text, { mode: 0o600 });
  return folder;
}

function launchConfigured(
  name: string,
  command: string,
  folder: string,
  onLine: TemporalOptions['onLog'],
): ServerProcess {
  return launch({ name, command, args: ['--root', '/', '--config', folder, 'start'], onLine });
}

/**
 * Launches a server and returns once the namespace responds. Tries another free port if its port is
 * taken in the meantime.
 * @throws {OperatorProblem} if a port is taken, or it does not start
 */
async function bringUp(
  { port, uiPort }: Pick<TemporalOptions, 'port' | 'uiPort'>,
  namespace: string,
  launchAt: (port: number) => ServerProcess | Promise<ServerProcess>,
) {
  if (uiPort !== undefined) await freePort(uiPort, "Temporal's UI");
  const addressAt = (port: number) => `${LOOPBACK}:${port}`;
  const server = await launchOnPort('Temporal', port, launchAt, async (_server, port) => {
    const target = { connectionOptions: { address: addressAt(port) }, namespace };
    return (await temporalTrouble(target)) === null;
  });
  return {
    ...server,
    /** host:port of the gRPC service */
    address: addressAt(server.port),
    uiUrl: uiPort === undefined ? null : `http://${addressAt(uiPort)}`,
  };
}

const NAMESPACE_MS = 60_000;

/**
 * Creates a namespace in a running cluster if it is missing, and returns once the cluster serves
 * it.
 * @throws {OperatorProblem} if the cluster refuses
 */
export async function ensureNamespace(target: TemporalTarget, namespace: string): Promise<void> {
  const client = lazyClient({ ...target, namespace });
  try {
    await client.withDeadline(Date.now() + NAMESPACE_MS, () => makeNamespace(client));
  } catch (error) {
    const { address } = target.connectionOptions;
    const reason = error instanceof Error ? error.message : error;
    throw new OperatorProblem(
      `Temporal at ${address} does not give the local stack its own namespace ${namespace} (${reason}): check TEMPORAL_ADDRESS, or unset it.`,
    );
  } finally {
    await client.connection.close();
  }
}

/** Exists as soon as the server responds. */
const SYSTEM_NAMESPACE = 'temporal-system';
/** The server's names for its databases and for their schemas. */
const DATABASES = { temporal: 'temporal', temporal_visibility: 'visibility' };
const PLUGIN = 'postgres12';

/** Creates databases and tables, or updates them to this version. Each step is safe to repeat. */
async function makeTables(sqlTool: string, postgres: URL): Promise<void> {
  const { hostname, port, username, password, pathname } = postgres;
  const at = ['--plugin', PLUGIN, '--endpoint', hostname, '--port', port, '--user', username];
  const sql = async (database: string, command: string, ...options: string[]) => {
    const args = [...at, '--database', database, command, ...options];
    // Passed in the environment, because others can see the command line.
    const { code, output } = await run(sqlTool, args, { env: { SQL_PASSWORD: password } });
    if (code === 0) return;
    throw new OperatorProblem(
      `Temporal's tables could not be made (${command} of ${database}): ${output}`,
    );
  };
  for (const [database, schema] of Object.entries(DATABASES)) {
    await sql(database, 'create-database', '--defaultdb', pathname.slice(1));
    await sql(database, 'setup-schema', '--version', '0.0');
    await sql(database, 'update-schema', '--schema-name', `postgresql/v12/${schema}`);
  }
  const forgetMembers = fileURLToPath(new URL('../../db/temporal-members.sql', import.meta.url));
  await sql('temporal', 'setup-schema', '--disable-versioning', '--schema-file', forgetMembers);
}

/**
 * Returns the required settings of the server. All others keep the server's defaults, as in a
 * production cluster.
 */
async function serverConfiguration(postgres: URL, port: number, dynamicConfig: string) {
  const address = `${LOOPBACK}:${port}`;
  return {
    log: { stdout: true, level: 'error' },
    persistence: {
      defaultStore: 'history',
      visibilityStore: 'visibility',
      // Can't change after the tables were created.
      numHistoryShards: 4,
      datastores: {
        history: storeOn(postgres, 'temporal'),
        visibility: storeOn(postgres, 'temporal_visibility'),
      },
    },
    global: { membership: { maxJoinDuration: '30s', broadcastAddress: LOOPBACK } },
    services: {
      frontend: await serviceOn(port),
      history: await serviceOn(await lowPort()),
      matching: await serviceOn(await lowPort()),
      worker: await serviceOn(await lowPort()),
    },
    clusterMetadata: {
      failoverVersionIncrement: 10,
      masterClusterName: 'active',
      currentClusterName: 'active',
      clusterInformation: {
        active: {
          enabled: true,
          initialFailoverVersion: 1,
          rpcName: 'frontend',
          rpcAddress: address,
        },
      },
    },
    publicClient: { hostPort: address },
    dynamicConfigClient: { filepath: dynamicConfig, pollInterval: '10s' },
  };
}

async function serviceOn(grpcPort: number) {
  return { rpc: { grpcPort, membershipPort: await lowPort(), bindOnIP: LOOPBACK } };
}

function storeOn({ host, username, password }: URL, databaseName: string) {
  return {
    sql: {
      pluginName: PLUGIN,
      databaseName,
      connectAddr: host,
      connectProtocol: 'tcp',
      user: username,
      password,
      maxConns: 10,
      maxIdleConns: 10,
    },
  };
}

/**
 * Returns a free port that fits into the smallint in which the server stores ports. The system
 * would choose higher ports.
 */
function lowPort(): Promise<number> {
  return freePort(randomInt(10_000, 32_768)).catch(lowPort);
}
