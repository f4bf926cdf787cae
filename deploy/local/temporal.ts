import { mkdir } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Connection, isGrpcServiceError } from '@temporalio/client';
import { msToTs } from '@temporalio/common/lib/time.js';
import type { TemporalTarget } from '../temporal/client.ts';
import { SEARCH_ATTRIBUTE_WORDS } from '../temporal/namespace.ts';
import { temporalTrouble } from '../temporal/trouble.ts';
import {
  freePort,
  LOOPBACK,
  LocalProblem,
  launch,
  launchOnPort,
  PORT_IN_USE,
  poll,
  type ReadyServer,
  requirePortFree,
  type ServerProcess,
} from './processes.ts';

export interface Temporal extends Omit<ReadyServer, 'port'> {
  /** host:port of the gRPC service */
  readonly address: string;
  /** undefined when headless */
  readonly uiUrl: string | undefined;
}

export interface TemporalOptions {
  /** From `findTemporalCli`. */
  readonly cli: string;
  readonly namespace: string;
  /** Loopback ports; without them free ones. */
  readonly port?: number;
  readonly uiPort?: number;
  /** No UI. */
  readonly headless: boolean;
  /** Settings of the server, such as `matching.maxDeployments=1000`. */
  readonly dynamicConfig?: readonly string[];
  /** Where workflows are kept; without it in memory. */
  readonly dbFile?: string;
  readonly onLog?: (line: string) => void;
}

const START_MS = 60_000;
const ASK_MS = 2_000;
/** How long workflows that are over can be looked at. */
const RETENTION = '3 days';
/** ALREADY_EXISTS of gRPC. */
const ALREADY_EXISTS = 6;

/**
 * Starts a Temporal dev server on loopback and returns once its namespace answers.
 * @throws {LocalProblem} `port_taken`, `temporal_failed`
 */
export async function startTemporal(options: TemporalOptions): Promise<Temporal> {
  if (options.dbFile !== undefined) await mkdir(dirname(options.dbFile), { recursive: true });
  return await bringUp(options, options.namespace, (port, uiPort) => launchServer(options, port, uiPort));
}

/**
 * Launches a server, on other free ports when those it was given are taken meanwhile, and returns once the namespace
 * answers.
 * @throws {LocalProblem} `port_taken`, `temporal_failed`
 */
export async function bringUp(
  options: Pick<TemporalOptions, 'port' | 'uiPort' | 'headless'>,
  namespace: string,
  launchAt: (port: number, uiPort: number | undefined) => ServerProcess | Promise<ServerProcess>,
): Promise<Temporal> {
  if (options.port !== undefined) await requirePortFree(options.port, 'Temporal');
  if (options.uiPort !== undefined && !options.headless)
    await requirePortFree(options.uiPort, "Temporal's UI");

  let uiUrl: string | undefined;
  const { port, ...server } = await launchOnPort({
    name: 'Temporal',
    code: 'temporal_failed',
    port: options.port,
    startMs: START_MS,
    // A server also takes free ports of its own choice, which another program may take first.
    again: PORT_IN_USE,
    async launchAt(port) {
      const uiPort = options.headless ? undefined : (options.uiPort ?? (await freePort()));
      uiUrl = uiPort === undefined ? undefined : `http://${LOOPBACK}:${uiPort}`;
      return await launchAt(port, uiPort);
    },
    isReady: async (_server, port) =>
      (await temporalTrouble({ connectionOptions: { address: `${LOOPBACK}:${port}` }, namespace })) === null,
  });
  return { ...server, address: `${LOOPBACK}:${port}`, uiUrl };
}

/**
 * Makes a namespace in a cluster that runs already, unless it is there, and returns once the cluster serves it.
 * @throws {LocalProblem} `temporal_failed`
 */
export async function ensureNamespace(
  { connectionOptions }: TemporalTarget,
  namespace: string,
): Promise<void> {
  const connection = Connection.lazy(connectionOptions);
  const { workflowService } = connection;
  try {
    const workflowExecutionRetentionPeriod = msToTs(RETENTION);
    await connection
      .withDeadline(Date.now() + ASK_MS, () =>
        workflowService.registerNamespace({ namespace, workflowExecutionRetentionPeriod }),
      )
      .catch((error) => {
        if (!(isGrpcServiceError(error) && error.code === ALREADY_EXISTS)) throw error;
      });
    // A cluster notices a new namespace some seconds later.
    const served = await poll(
      () => workflowService.listWorkflowExecutions({ namespace, pageSize: 1 }).catch(() => undefined),
      START_MS,
    );
    if (served === undefined) throw new Error('it was made, but is not served');
  } catch (error) {
    throw new LocalProblem(
      'temporal_failed',
      `Temporal at ${connectionOptions.address} does not give the local stack a namespace of its own, ${namespace} ` +
        `(${error instanceof Error ? error.message : error}): check TEMPORAL_ADDRESS, or unset it.`,
    );
  } finally {
    await connection.close();
  }
}

function launchServer(options: TemporalOptions, port: number, uiPort: number | undefined): ServerProcess {
  const ui = uiPort === undefined ? ['--headless'] : ['--ui-ip', LOOPBACK, '--ui-port', String(uiPort)];
  const file = options.dbFile === undefined ? [] : ['--db-filename', options.dbFile];
  const attributes = SEARCH_ATTRIBUTE_WORDS.flatMap((attribute) => ['--search-attribute', attribute]);
  const settings = (options.dynamicConfig ?? []).flatMap((value) => ['--dynamic-config-value', value]);
  return launch({
    name: 'Temporal',
    command: options.cli,
    args: [
      ...['server', 'start-dev', '--ip', LOOPBACK, '--port', String(port), ...ui, ...file],
      ...['--namespace', options.namespace, ...attributes, ...settings, '--log-level', 'error'],
    ],
    onLine: options.onLog,
  });
}
