import { randomInt } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { OperatorProblem } from '../../db/connection/errors.ts';
import { launch, run } from '../../deploy/local/processes.ts';
import {
  bringUp,
  dynamicConfigOf,
  ensureNamespace,
  type Temporal,
  type TemporalOptions,
} from '../../deploy/local/temporal.ts';
import { freePort, LOOPBACK } from '../../deploy/ports.ts';
import { findTemporalServer } from './tools.ts';

// Starts Temporal's production server for tests. `npm start` uses the dev server of Temporal's CLI.

export interface ServerOptions extends Omit<TemporalOptions, 'uiPort'> {
  /**
   * The URL for a superuser of a PostgreSQL. The databases `temporal` and
   * `temporal_visibility` are created there.
   */
  readonly postgresUrl: string;
  /** The folder for the configuration files, which contain the password of the database. */
  readonly dir: string;
}

/**
 * Starts the production server of Temporal as one process on loopback, with its data in PostgreSQL.
 * Go builds the server if it is missing. Resolves when the namespace can be used.
 * @throws {OperatorProblem} if the port is taken, or the server does not start
 */
export async function startTemporalServer(options: ServerOptions): Promise<Temporal> {
  const { namespace, onLog } = options;
  const programs = await findTemporalServer();
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
    // The file may contain JSON, because JSON is valid YAML. It has the database's password.
    const text = JSON.stringify(configuration, null, 2);
    await writeFile(join(dir, 'base.yaml'), text, { mode: 0o600 });
    return launch({
      name: 'temporal',
      command: programs.server,
      args: ['--root', '/', '--config', dir, 'start'],
      onLine: onLog,
    });
  });
  try {
    await ensureNamespace({ connectionOptions: { address: server.address } }, namespace);
    return server;
  } catch (error) {
    await server.stop();
    throw error;
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
  const forgetMembers = fileURLToPath(new URL('temporal-members.sql', import.meta.url));
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
