import { OperatorProblem } from '../../db/errors.ts';
import { lazyClient, type TemporalTarget } from '../temporal/client.ts';
import { makeNamespace, SEARCH_ATTRIBUTE_WORDS } from '../temporal/namespace.ts';
import { temporalTrouble } from '../temporal/trouble.ts';
import { freePort, LOOPBACK, launch, launchOnPort, type ServerProcess } from './processes.ts';

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
  const { namespace, uiPort, dynamicConfig = {}, onLog } = options;
  const args = [
    ...['--namespace', namespace, '--log-level', 'error'],
    ...(uiPort === undefined ? ['--headless'] : ['--ui-ip', LOOPBACK, '--ui-port', String(uiPort)]),
    ...(dbFile === undefined ? [] : ['--db-filename', dbFile]),
    ...SEARCH_ATTRIBUTE_WORDS.flatMap((attribute) => ['--search-attribute', attribute]),
    ...Object.entries(dynamicConfig).flatMap(([key, value]) => ['--dynamic-config-value', `${key}=${value}`]),
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
 * Launches a server, on another free port when the one it was given is taken meanwhile, and returns once the namespace
 * answers.
 * @throws {OperatorProblem} if a port is taken, or it does not start
 */
export async function bringUp(
  { port, uiPort }: Pick<TemporalOptions, 'port' | 'uiPort'>,
  namespace: string,
  launchAt: (port: number) => ServerProcess | Promise<ServerProcess>,
) {
  if (uiPort !== undefined) await freePort(uiPort, "Temporal's UI");
  const addressAt = (port: number) => `${LOOPBACK}:${port}`;
  const server = await launchOnPort({
    name: 'Temporal',
    port,
    launchAt,
    isReady: async (_server, port) =>
      (await temporalTrouble({ connectionOptions: { address: addressAt(port) }, namespace })) === null,
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
