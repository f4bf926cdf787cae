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
 * Shares task queues out by fairness key, so that one customer's backlog does not stand in front of the others. The switch
 * needs the new matcher.
 */
const FAIRNESS = { 'matching.useNewMatcher': true, 'matching.enableFairness': true };

export interface TemporalOptions {
  readonly namespace: string;
  /** A loopback port; without it a free one. */
  readonly port?: number;
  /** Where the UI listens; without it there is none. */
  readonly uiPort?: number;
  /** Settings of the server, such as `{ 'matching.maxDeployments': 1000 }`. */
  readonly dynamicConfig?: Readonly<Record<string, number | boolean>>;
  readonly onLog?: (line: string) => void;
}

/** Returns the settings of a server: fairness, and those that are asked for. */
function dynamicConfigOf({ dynamicConfig }: TemporalOptions): [string, number | boolean][] {
  return Object.entries({ ...FAIRNESS, ...dynamicConfig });
}

export type Temporal = Awaited<ReturnType<typeof bringUp>>;

/**
 * Starts a Temporal dev server on loopback and returns once its namespace answers.
 * @param cli from `findTemporalCli`
 * @param dbFile where workflows are kept; its folder exists. Without it they are kept in memory
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
    ...dynamicConfigOf(options).flatMap(([key, value]) => ['--dynamic-config-value', `${key}=${value}`]),
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
 * Starts the server on PostgreSQL, as one process on loopback, and its UI. It returns once the namespace answers.
 * @param options.programs from `findTemporalServer`
 * @param options.postgresUrl of a superuser of a PostgreSQL of our own; the databases `temporal` and
 *   `temporal_visibility` are made in it
 * @param options.dir for the configuration, which names the password
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
  // The server takes a relative one from its root.
  const dir = resolve(options.dir);
  const start = async (name: string, command: string, configuration: object) => {
    const config = join(dir, name);
    await mkdir(config, { recursive: true });
    // JSON is YAML.
    await writeFile(join(config, 'base.yaml'), JSON.stringify(configuration, null, 2), { mode: 0o600 });
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
 * Launches a server, on another free port when the one it was given is taken meanwhile, and returns once the namespace
 * answers.
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
 * Makes a namespace in a cluster that runs already, unless it is there, and returns once the cluster serves it.
 * @throws {OperatorProblem} if it is not given one
 */
export async function ensureNamespace(target: TemporalTarget, namespace: string): Promise<void> {
  const client = lazyClient({ ...target, namespace });
  try {
    await client.withDeadline(Date.now() + NAMESPACE_MS, () => makeNamespace(client));
  } catch (error) {
    throw new OperatorProblem(
      `Temporal at ${target.connectionOptions.address} does not give the local stack a namespace of its own, ${namespace} ` +
        `(${error instanceof Error ? error.message : error}): check TEMPORAL_ADDRESS, or unset it.`,
    );
  } finally {
    await client.connection.close();
  }
}

/** It is there as soon as the server answers. */
const SYSTEM_NAMESPACE = 'temporal-system';
/** The server's names for its databases, and for their schemas. */
const DATABASES = { temporal: 'temporal', temporal_visibility: 'visibility' };
const PLUGIN = 'postgres12';

/** Makes databases and tables, or what they lack of this version; each step is safe to repeat. */
async function makeTables(sqlTool: string, postgres: URL): Promise<void> {
  const { hostname, port, username, password, pathname } = postgres;
  const at = ['--plugin', PLUGIN, '--endpoint', hostname, '--port', port, '--user', username];
  const sql = async (database: string, command: string, ...options: string[]) => {
    const args = [...at, '--database', database, command, ...options];
    // Not on the command line, which others can see.
    const { code, output } = await run(sqlTool, args, { env: { SQL_PASSWORD: password } });
    if (code === 0) return;
    throw new OperatorProblem(`Temporal's tables could not be made (${command} of ${database}): ${output}`);
  };
  for (const [database, schema] of Object.entries(DATABASES)) {
    await sql(database, 'create-database', '--defaultdb', pathname.slice(1));
    await sql(database, 'setup-schema', '--version', '0.0');
    await sql(database, 'update-schema', '--schema-name', `postgresql/v12/${schema}`);
  }
  const forgetMembers = fileURLToPath(new URL('../../db/temporal-members.sql', import.meta.url));
  await sql('temporal', 'setup-schema', '--disable-versioning', '--schema-file', forgetMembers);
}

/** What has to be said; everything else is as the server has it, which is what a cluster of one's own has. */
async function serverConfiguration(postgres: URL, port: number, dynamicConfig: string) {
  const service = async (grpcPort?: number) => ({
    rpc: { grpcPort: grpcPort ?? (await lowPort()), membershipPort: await lowPort(), bindOnIP: LOOPBACK },
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
      // Fixed once the tables are made.
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
        active: { enabled: true, initialFailoverVersion: 1, rpcName: 'frontend', rpcAddress: address },
      },
    },
    publicClient: { hostPort: address },
    dynamicConfigClient: { filepath: dynamicConfig, pollInterval: '10s' },
  };
}

/** A free one that fits into a smallint, as which the server keeps ports; programs are given higher ones by the system. */
function lowPort(): Promise<number> {
  return freePort(randomInt(10_000, 32_768)).catch(lowPort);
}
