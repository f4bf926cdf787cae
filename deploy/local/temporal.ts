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

/**
 * Starts a Temporal dev server on loopback and returns once its namespace responds.
 * @param cli from `findTemporalCli`
 * @param dbFile where workflows are stored; its folder must exist. Without it they are kept in
 * memory
 * @throws {OperatorProblem} if a port is taken, or it does not start
 */
export async function startTemporal({
  cli,
  dbFile,
  ...options
}: TemporalOptions & { readonly cli: string; readonly dbFile?: string }): Promise<Temporal> {
  const { namespace, uiPort, onLog } = options;
  const args = [
    ...['--namespace', namespace, '--log-level', 'error'],
    ...(uiPort === undefined ? ['--headless'] : ['--ui-ip', LOOPBACK, '--ui-port', String(uiPort)]),
    ...(dbFile === undefined ? [] : ['--db-filename', dbFile]),
    ...SEARCH_ATTRIBUTE_WORDS.flatMap((attribute) => ['--search-attribute', attribute]),
    ...dynamicConfigOf(options).flatMap(([key, value]) => [
      '--dynamic-config-value',
      `${key}=${value}`,
    ]),
  ];
  return await bringUp(options, namespace, (port) =>
    launch({
      name: 'Temporal',
      command: cli,
      args: ['server', 'start-dev', '--ip', LOOPBACK, '--port', String(port), ...args],
      onLine: onLog,
    }),
  );
}

/**
 * Starts the Temporal server as one process on loopback, with PostgreSQL, and its UI. Returns once
 * the namespace responds.
 * @param options.programs from `findTemporalServer`
 * @param options.postgresUrl of a superuser in the stack's own PostgreSQL, where the databases
 * `temporal` and `temporal_visibility` are created
 * @param options.dir for the configuration, which contains the password
 * @throws {OperatorProblem} if a port is taken, or it does not start
 */
export async function startTemporalServer(
  options: TemporalOptions & {
    readonly programs: Awaited<ReturnType<typeof findTemporalServer>>;
    readonly postgresUrl: string;
    readonly dir: string;
  },
): Promise<Temporal> {
  const { programs, namespace, postgresUrl, uiPort } = options;
  // The server would resolve a relative path from its root.
  const dir = resolve(options.dir);
  const start = async (name: string, command: string, configuration: object) => {
    const config = join(dir, name);
    await mkdir(config, { recursive: true });
    // JSON is valid YAML.
    await writeFile(join(config, 'base.yaml'), JSON.stringify(configuration, null, 2), {
      mode: 0o600,
    });
    return launch({
      name,
      command,
      args: ['--root', '/', '--config', config, 'start'],
      onLine: options.onLog,
    });
  };
  const postgres = new URL(postgresUrl);
  await mkdir(dir, { recursive: true });
  await makeTables(programs.sqlTool, postgres);
  const dynamicConfig = join(dir, 'dynamic.yaml');
  const settings = dynamicConfigOf(options).map(([key, value]) => [key, [{ value }]]);
  await writeFile(dynamicConfig, JSON.stringify(Object.fromEntries(settings)));
  const server = await bringUp(options, SYSTEM_NAMESPACE, async (port) =>
    start('temporal', programs.server, await serverConfiguration(postgres, port, dynamicConfig)),
  );
  try {
    await ensureNamespace({ connectionOptions: { address: server.address } }, namespace);
    if (uiPort === undefined) return server;
    const ui = await start('temporal-ui', programs.ui, {
      temporalGrpcAddress: server.address,
      host: LOOPBACK,
      port: uiPort,
      enableUi: true,
      defaultNamespace: namespace,
    });
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
    throw new OperatorProblem(
      `Temporal at ${target.connectionOptions.address} does not give the local stack its own namespace ${namespace} ` +
        `(${error instanceof Error ? error.message : error}): check TEMPORAL_ADDRESS, or unset it.`,
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
  const service = async (grpcPort?: number) => ({
    rpc: {
      grpcPort: grpcPort ?? (await lowPort()),
      membershipPort: await lowPort(),
      bindOnIP: LOOPBACK,
    },
  });
  const store = (databaseName: string) => ({
    sql: {
      pluginName: PLUGIN,
      databaseName,
      connectAddr: postgres.host,
      connectProtocol: 'tcp',
      user: postgres.username,
      password: postgres.password,
      maxConns: 10,
      maxIdleConns: 10,
    },
  });
  const address = `${LOOPBACK}:${port}`;
  return {
    log: { stdout: true, level: 'error' },
    persistence: {
      defaultStore: 'history',
      visibilityStore: 'visibility',
      // Can't change after the tables were created.
      numHistoryShards: 4,
      datastores: { history: store('temporal'), visibility: store('temporal_visibility') },
    },
    global: { membership: { maxJoinDuration: '30s', broadcastAddress: LOOPBACK } },
    services: {
      frontend: await service(port),
      history: await service(),
      matching: await service(),
      worker: await service(),
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

/**
 * Returns a free port that fits into the smallint in which the server stores ports. The system
 * would choose higher ports.
 */
function lowPort(): Promise<number> {
  return freePort(randomInt(10_000, 32_768)).catch(lowPort);
}
