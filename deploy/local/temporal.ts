import { randomInt } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { OperatorProblem } from '../../db/connection/errors.ts';
import { freePort, LOOPBACK } from '../ports.ts';
import { lazyClient, type TemporalTarget } from '../temporal/client.ts';
import { makeNamespace, SEARCH_ATTRIBUTE_WORDS } from '../temporal/namespace.ts';
import { temporalTrouble } from '../temporal/trouble.ts';
import { launch, launchOnPort, run, type ServerProcess } from './processes.ts';
import type { findTemporalServer } from './programs.ts';

/**
 * Settings of the Temporal server that switch fairness on. Tasks with different fairness keys then
 * take turns, so that one customer's backlog does not delay other customers. Fairness only works
 * with the server's new matcher.
 */
const FAIRNESS = { 'matching.useNewMatcher': true, 'matching.enableFairness': true };

export interface TemporalOptions {
  readonly namespace: string;
  /** The port of the server on loopback. Defaults to a free port. */
  readonly port?: number;
  /** The port of the UI. Without it, no UI is started. */
  readonly uiPort?: number;
  /** Additional settings of the server, such as `{ 'matching.maxDeployments': 1000 }`. */
  readonly dynamicConfig?: Readonly<Record<string, number | boolean>>;
  readonly onLog?: (line: string) => void;
}

/** Returns the settings of the server: `FAIRNESS` and the additional ones. */
function dynamicConfigOf({
  dynamicConfig,
}: TemporalOptions): [string, number | boolean][] {
  return Object.entries({ ...FAIRNESS, ...dynamicConfig });
}

export type Temporal = Awaited<ReturnType<typeof bringUp>>;

export interface DevServerOptions extends TemporalOptions {
  /** The path of the CLI, as `findTemporalCli` returns it. */
  readonly cli: string;
  /**
   * The file in which the server stores its data. Its folder must exist. Without a file, the data
   * is only in memory.
   */
  readonly dbFile?: string;
}

/**
 * Starts a Temporal dev server on loopback. Resolves when its namespace can be used.
 * @throws {OperatorProblem} if a port is taken, or the server does not start
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
  for (const attribute of SEARCH_ATTRIBUTE_WORDS) {
    args.push('--search-attribute', attribute);
  }
  for (const [key, value] of dynamicConfigOf(options)) {
    args.push('--dynamic-config-value', `${key}=${value}`);
  }
  return args;
}

export interface ServerOptions extends TemporalOptions {
  /** The paths of the programs, as `findTemporalServer` returns them. */
  readonly programs: Awaited<ReturnType<typeof findTemporalServer>>;
  /**
   * The URL for a superuser of the stack's own PostgreSQL. The databases `temporal` and
   * `temporal_visibility` are created there.
   */
  readonly postgresUrl: string;
  /** The folder for the configuration files, which contain the password of the database. */
  readonly dir: string;
}

/**
 * Starts the production server of Temporal as one process on loopback, with its data in PostgreSQL.
 * Also starts the UI if `uiPort` is given. Resolves when the namespace can be used.
 * @throws {OperatorProblem} if a port is taken, or the server does not start
 */
export async function startTemporalServer(options: ServerOptions): Promise<Temporal> {
  const { programs, namespace, uiPort, onLog } = options;
  // The path must be absolute, because the server is started with `--root /`.
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

/** Writes the configuration file of a program. Returns the folder of the file. */
async function writeConfiguration(
  dir: string,
  name: string,
  content: object,
): Promise<string> {
  const folder = join(dir, name);
  await mkdir(folder, { recursive: true });
  // The file may contain JSON, because JSON is valid YAML.
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
  return launch({
    name,
    command,
    args: ['--root', '/', '--config', folder, 'start'],
    onLine,
  });
}

/**
 * Launches a server. Resolves when the namespace can be used. If no port is given, chooses a free
 * one. If another program takes that port in the meantime, tries another one.
 * @throws {OperatorProblem} if a given port is taken, or the server does not start
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
    /** The address of the gRPC service as `host:port`. */
    address: addressAt(server.port),
    uiUrl: uiPort === undefined ? null : `http://${addressAt(uiPort)}`,
  };
}

const NAMESPACE_MS = 60_000;

/**
 * Creates a namespace in a running cluster if it is missing. Resolves when the namespace can be
 * used.
 * @throws {OperatorProblem} if the namespace can't be created
 */
export async function ensureNamespace(
  target: TemporalTarget,
  namespace: string,
): Promise<void> {
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

/** A namespace that exists as soon as the server has started. */
const SYSTEM_NAMESPACE = 'temporal-system';
/**
 * The names of the server's databases, with the name of the schema that the SQL tool creates in
 * each.
 */
const DATABASES = { temporal: 'temporal', temporal_visibility: 'visibility' };
const PLUGIN = 'postgres12';

/**
 * Creates the databases and tables of the Temporal server, or updates them to the server's version.
 * All steps are safe to repeat.
 */
async function makeTables(sqlTool: string, postgres: URL): Promise<void> {
  const { hostname, port, username, password, pathname } = postgres;
  const at = [
    '--plugin',
    PLUGIN,
    '--endpoint',
    hostname,
    '--port',
    port,
    '--user',
    username,
  ];
  const sql = async (database: string, command: string, ...options: string[]) => {
    const args = [...at, '--database', database, command, ...options];
    // The password is passed in the environment, because all users of this machine can see command
    // lines.
    const { code, output } = await run(sqlTool, args, {
      env: { SQL_PASSWORD: password },
    });
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
  const forgetMembers = fileURLToPath(
    new URL('../../db/operations/temporal-members.sql', import.meta.url),
  );
  await sql(
    'temporal',
    'setup-schema',
    '--disable-versioning',
    '--schema-file',
    forgetMembers,
  );
}

/**
 * Returns the configuration of the server. It only has the required settings. All other settings
 * have the server's defaults, as in a production cluster.
 */
async function serverConfiguration(postgres: URL, port: number, dynamicConfig: string) {
  const address = `${LOOPBACK}:${port}`;
  return {
    log: { stdout: true, level: 'error' },
    persistence: {
      defaultStore: 'history',
      visibilityStore: 'visibility',
      // This number can't be changed after the tables were created.
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
 * Returns a free port below 32768. The server stores ports in columns of the type smallint, and a
 * port that the operating system chooses may be too large for this type.
 */
function lowPort(): Promise<number> {
  return freePort(randomInt(10_000, 32_768)).catch(lowPort);
}
