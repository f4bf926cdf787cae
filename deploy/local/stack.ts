import { createWriteStream } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { LocalConfig } from '../config/config.ts';
import { startDns } from './dns.ts';
import { importSample } from './nppes.ts';
import { freePort, LOOPBACK, requirePortFree } from './ports.ts';
import { startPostgres } from './postgres.ts';
import { LocalProblem } from './problem.ts';
import { launch } from './processes.ts';
import { startReceiver } from './receiver.ts';
import { createSimulator } from './simulator.ts';
import { sourceSettings } from './sources.ts';
import { SEARCH_ATTRIBUTES, startTemporal } from './temporal.ts';
import { cacheFolder, findTemporalCli } from './temporal-cli.ts';
import type { Tenant } from './tenant.ts';

/** What `.local/stack.json` says, for scripts. */
export interface StackFacts {
  readonly base_url: string;
  readonly api_key: string;
  readonly temporal_address: string;
  readonly temporal_ui: string | null;
  readonly database_url: string;
  readonly simulator_url: string;
  readonly receiver_url: string;
  readonly organization_id: string;
  readonly temporal_cli: string | null;
}

export interface Stack {
  readonly facts: StackFacts;
  /** Rejects with one sentence when a process of the stack dies. */
  readonly failed: Promise<never>;
  stop(): Promise<void>;
}

export interface StackOptions {
  /** Data, logs, certificates. */
  readonly dir: string;
  /** 0 takes a free one. */
  readonly apiPort: number;
  readonly given: LocalConfig;
  readonly say: (line: string) => void;
  readonly signal: AbortSignal;
  /** Migrates and finds or makes the demonstration organization. */
  readonly prepare: (databaseUrl: string) => Promise<Tenant>;
}

/** What nobody wants to wait for at a terminal; the README has the production values. */
const SHORTER = {
  LOOKUP_TIMEOUT: '1m',
  ROCKETREACH_TIMEOUT: '15s',
  VENDOR_CALL_TIMEOUT: '10s',
  FULLENRICH_POLL: '2s',
  GREYLIST_WAIT: '10s',
};
/** Where a server is found every time, as long as nobody else is there. */
const USUAL = { postgres: 5442, temporal: 7233, ui: 8233, simulator: 8090, receiver: 8443 };

type Stop = () => Promise<void>;

/**
 * Brings up every part in order, and takes down in the reverse order what it has brought up when one fails.
 * @throws {LocalProblem} in one sentence
 */
export async function startStack(options: StackOptions): Promise<Stack> {
  const parts = createParts(join(options.dir, 'logs'));
  try {
    const facts = await bringUp(options, parts);
    return { facts, failed: parts.failed, stop: parts.stop };
  } catch (error) {
    await parts.stop();
    throw error;
  }
}

/** What runs, in the order of its start. */
interface Parts {
  readonly failed: Promise<never>;
  add(stop: Stop): void;
  /** Its unasked end fails the stack. */
  watch(name: string, server: { readonly exited: Promise<string> }): void;
  stop(): Promise<void>;
}

function createParts(logs: string): Parts {
  const stops: Stop[] = [];
  const death = Promise.withResolvers<never>();
  // Whoever waits for it is told; nobody waiting is no crash.
  death.promise.catch(() => {});
  let stopping = false;
  return {
    failed: death.promise,
    add: (stop) => stops.push(stop),
    watch(name, server) {
      void server.exited.then((ending) => {
        if (stopping) return;
        death.reject(
          new LocalProblem('died', `${name} ended unexpectedly (${ending}); see its log in ${logs}.`),
        );
      });
    },
    async stop() {
      stopping = true;
      for (const end of stops.splice(0).reverse()) await end();
    },
  };
}

async function bringUp(options: StackOptions, parts: Parts): Promise<StackFacts> {
  const { dir, given, say, signal } = options;
  const logs = join(dir, 'logs');
  await mkdir(logs, { recursive: true });
  const part = async <T>(name: string, begin: () => Promise<T>): Promise<T> => {
    signal.throwIfAborted();
    const begun = performance.now();
    const result = await Promise.race([begin(), parts.failed]);
    say(`  ${name.padEnd(18)} ${((performance.now() - begun) / 1000).toFixed(1)} s`);
    return result;
  };

  if (options.apiPort !== 0) await requirePortFree(options.apiPort, 'the API', '--port');
  const apiPort = options.apiPort || (await freePort());
  say('Starting the local stack:');

  const database = await part('PostgreSQL', async () => {
    if (given.databaseUrl !== null) return { url: given.databaseUrl };
    const port = await usualPort(USUAL.postgres);
    const server = await startPostgres({
      dataDir: join(dir, 'postgres'),
      port,
      onLog: logTo(logs, 'postgres'),
    });
    parts.add(server.stop);
    parts.watch('PostgreSQL', server);
    return server;
  });
  const tenant = await part('migrations', () => options.prepare(database.url));
  await part('sample of NPPES', () => importSample(database.url, dir));

  const temporal = await part('Temporal', async () => {
    if (given.temporalAddress !== null)
      return { address: given.temporalAddress, uiUrl: undefined, cli: null };
    const cli = await findTemporalCli({
      cacheDir: cacheFolder(given.cacheHome),
      onProgress: (line) => say(`    ${line}`),
    });
    const server = await startTemporal({
      cli,
      namespace: 'default',
      headless: false,
      port: await usualPort(USUAL.temporal),
      uiPort: await usualPort(USUAL.ui),
      dbFile: join(dir, 'temporal', 'temporal.db'),
      searchAttributes: SEARCH_ATTRIBUTES,
      onLog: logTo(logs, 'temporal'),
    });
    parts.add(server.stop);
    parts.watch('Temporal', server);
    return { ...server, cli };
  });

  const { simulator, receiver, dns } = await part('vendors, receiver', async () => {
    const simulator = await createSimulator({
      port: await usualPort(USUAL.simulator),
      speed: 1,
      apiKey: tenant.vendorKey,
    });
    parts.add(simulator.close);
    const receiver = await startReceiver({
      port: await usualPort(USUAL.receiver),
      dir: join(dir, 'receiver'),
      secret: tenant.webhookSecret,
    });
    parts.add(receiver.close);
    const dns = await startDns();
    parts.add(dns.close);
    return { simulator, receiver, dns };
  });

  const environment = {
    ...given.environment,
    DATABASE_URL: database.url,
    TEMPORAL_ADDRESS: temporal.address,
    API_HOST: LOOPBACK,
    API_PORT: String(apiPort),
    ...SHORTER,
    ...sourceSettings(simulator.urls, tenant.vendorKey),
    DNS_SERVERS: dns.address,
    WEBHOOK_CA_FILE: receiver.caFile,
    WEBHOOK_OPEN_CIDRS: '127.0.0.0/8',
  };
  await part('worker, API', async () => {
    const worker = startProcess('worker', environment, logs, parts);
    const api = startProcess('api', environment, logs, parts);
    await Promise.all([worker.ready, api.ready]);
  });
  return {
    base_url: `http://${LOOPBACK}:${apiPort}`,
    api_key: tenant.apiKey,
    temporal_address: temporal.address,
    temporal_ui: temporal.uiUrl ?? null,
    database_url: database.url,
    simulator_url: simulator.url,
    receiver_url: receiver.url,
    organization_id: tenant.organizationId,
    temporal_cli: temporal.cli,
  };
}

/** One of the production entry points as a child process, its log in a file; ready when it says so there. */
function startProcess(name: 'api' | 'worker', env: NodeJS.ProcessEnv, logs: string, parts: Parts) {
  const log = logTo(logs, name);
  const said = Promise.withResolvers<void>();
  const server = launch({
    name: `the ${name}`,
    command: process.execPath,
    args: [fileURLToPath(new URL(`../${name}.ts`, import.meta.url))],
    env,
    stopSignal: 'SIGTERM',
    forceSignal: 'SIGKILL',
    onLine(line) {
      log(line);
      if (line.includes(`"${name} ready"`)) said.resolve();
    },
  });
  parts.add(server.stop);
  parts.watch(`the ${name}`, server);
  return { ready: said.promise };
}

function logTo(logs: string, name: string): (line: string) => void {
  const file = createWriteStream(join(logs, `${name}.log`), { flags: 'a' });
  return (line) => file.write(`${line}\n`);
}

/** The usual port where it is free, any other where it is not: only the API's has to be the one that was asked for. */
async function usualPort(port: number): Promise<number> {
  try {
    await requirePortFree(port, '');
    return port;
  } catch {
    return await freePort();
  }
}
