import { randomInt } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isPortFree, LOOPBACK, LocalProblem, launch, run } from './processes.ts';
import { bringUp, ensureNamespace, type Temporal, type TemporalOptions } from './temporal.ts';
import { type CliSearch, findBuilt } from './temporal-cli.ts';

// Temporal as it runs in production: the server with its four services, its history and its visibility in PostgreSQL.

/** The same server as in the CLI, so that what differs is what it runs on. */
const VERSION = 'v1.29.1';
const UI_VERSION = 'v2.42.1';
const COMMANDS = 'go.temporal.io/server/cmd';

/** The server, the tool that makes its tables, and its UI: as what each is kept, and where Go has it from. */
const PROGRAMS = {
  server: [`temporal-server-${VERSION}`, `${COMMANDS}/server@${VERSION}`],
  sqlTool: [`temporal-sql-${VERSION}`, `${COMMANDS}/tools/sql@${VERSION}`],
  ui: [`temporal-ui-${UI_VERSION}`, `github.com/temporalio/ui-server/v2/cmd/server@${UI_VERSION}`],
} as const;

/** Whether all programs are in the cache folder. */
export function isServerBuilt(cacheDir: string): boolean {
  return Object.values(PROGRAMS).every(([name]) => existsSync(join(cacheDir, name)));
}

/**
 * The programs of the server: kept in the cache folder, else built by Go (4 to 6 minutes on two cores, once).
 * @throws {LocalProblem} `program_missing`
 */
export async function findTemporalServer(search: CliSearch) {
  const find = ([name, module]: readonly [name: string, module: string]) => findBuilt(search, module, name);
  const { server, sqlTool, ui } = PROGRAMS;
  return { server: await find(server), sqlTool: await find(sqlTool), ui: await find(ui) };
}

/**
 * Starts the server on PostgreSQL, as one process on loopback, and its UI. It returns once the namespace answers.
 * @param options.programs from `findTemporalServer`
 * @param options.postgresUrl of a superuser of a PostgreSQL of our own; the databases `temporal` and
 *   `temporal_visibility` are made in it
 * @param options.dir for the configuration, which names the password
 * @throws {LocalProblem} `port_taken`, `temporal_failed`
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
  await writeFile(dynamicConfig, dynamicConfiguration(options.dynamicConfig ?? []));
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
    const what = `Temporal's tables could not be made (${command} of ${database})`;
    throw new LocalProblem('temporal_failed', `${what}: ${output}`);
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

/** From what the dev server takes on its command line to the server's file. */
function dynamicConfiguration(settings: readonly string[]): string {
  const entries = settings.map((setting) => {
    const [key = '', value = ''] = setting.split('=');
    return [key, [{ value: JSON.parse(value) as unknown }]];
  });
  return JSON.stringify(Object.fromEntries(entries));
}

/** A free one that fits into a smallint, as which the server keeps ports; programs are given higher ones by the system. */
async function lowPort(): Promise<number> {
  for (;;) {
    const port = randomInt(10_000, 32_768);
    if (await isPortFree(port)) return port;
  }
}
