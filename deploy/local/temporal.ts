import { OperatorProblem } from '../../db/connection/errors.ts';
import { freePort, LOOPBACK } from '../ports.ts';
import { lazyClient, type TemporalTarget } from '../temporal/client.ts';
import { makeNamespace, SEARCH_ATTRIBUTE_WORDS } from '../temporal/namespace.ts';
import { temporalTrouble } from '../temporal/trouble.ts';
import { launch, launchOnPort, type ServerProcess } from './processes.ts';

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
export function dynamicConfigOf({
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
 * Starts a Temporal dev server on loopback. Resolves when its namespace can be used. The SDK's
 * `TestWorkflowEnvironment.createLocal` also starts this server, but it does not report when the
 * server ends, and the server continues to run if this process is killed.
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

/**
 * Launches a server. Resolves when the namespace can be used. If no port is given, chooses a free
 * one. If another program takes that port in the meantime, tries another one.
 * @throws {OperatorProblem} if a given port is taken, or the server does not start
 */
export async function bringUp(
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
      `Temporal at ${address} does not give the local stack its own namespace ` +
        `${namespace} (${reason}): check TEMPORAL_ADDRESS, or unset it.`,
    );
  } finally {
    await client.connection.close();
  }
}
