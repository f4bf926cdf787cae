import { mkdir, writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { cacheFolder, findTemporalCli } from '../../deploy/local/programs.ts';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { bundleWorkflows } from '../../deploy/temporal/workers.ts';
import { BUILT, type Build, keepBuilt } from './built.ts';
import { type TestSetting, temporaryFolder } from './database.ts';
import { succeed } from './installed.ts';
import { startTemporalServer } from './temporal-server.ts';
import { findTemporalServer } from './tools.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/** Each stack is a Worker Deployment, and a namespace may have 100 by default. */
export const TEST_DYNAMIC_CONFIG = { 'matching.maxDeployments': 100_000 };

/**
 * Removes `--temporal server` from the arguments of a command.
 * @returns true if it was there. Then tests run on Temporal's real server, with its own PostgreSQL
 */
export function takeServerFlag(given: string[]): boolean {
  const at = given.indexOf('--temporal');
  if (at === -1) return false;
  if (given.splice(at, 2)[1] === 'server') return true;
  throw new Error(
    '--temporal can only be followed by server: without it tests run on the dev server.',
  );
}

/** The clients' packages and the files of the documentation, which the API reads at its start. */
const PUBLISHED: Build = {
  name: 'published',
  inputs: [
    'api',
    'db',
    'deploy/build',
    'deploy/printable.ts',
    'LICENSE',
    'package-lock.json',
  ],
  outputs: [
    'api/clients/python/npi_email_enrichment/_sync_client.py',
    'api/clients/python/npi_email_enrichment/_sync_connection.py',
    'api/clients/python/npi_email_enrichment/types.py',
    'api/clients/python/npi_email_enrichment.whl',
    'api/clients/typescript/npi-email-enrichment.tgz',
    'api/clients/typescript/types.ts',
    'api/docs/assets/scalar.js.gz',
  ],
  run: () => succeed('npm', ['run', 'build', '--prefix', ROOT], 'they cannot be built'),
};

const BUNDLE = join(BUILT, 'workflow-bundle.js');
/** The workflows in one file, because bundling them takes seconds in each test file. */
const WORKFLOWS: Build = {
  name: 'workflow-bundle',
  inputs: ['workflows', 'deploy/temporal', 'package-lock.json'],
  outputs: [relative(ROOT, BUNDLE)],
  async run() {
    const { code } = await bundleWorkflows();
    await mkdir(BUILT, { recursive: true });
    await writeFile(BUNDLE, code);
  },
};

/** Builds the files without which an API does not start, if their sources changed. */
export function buildServedFiles(): Promise<void> {
  return keepBuilt(PUBLISHED);
}

/** Does a part of the work and may report it. */
type Step = <T>(name: string, work: () => Promise<T>) => Promise<T>;

/**
 * Starts the servers that all test files need: temporary PostgreSQL and Temporal, unless the
 * environment names some. Also builds the workflow bundle and the files that the API serves, if their
 * sources changed. Puts the results into the environment of this process, which children inherit.
 * @returns a function that stops the started servers
 */
export async function startServers({
  step = (_name, work) => work(),
  onServer = false,
}: {
  step?: Step;
  onServer?: boolean;
} = {}): Promise<() => Promise<void>> {
  // If one does not start, the others are stopped.
  await using started = new AsyncDisposableStack();
  const own = async <T extends { stop(): Promise<unknown> }>(
    starting: Promise<T>,
  ): Promise<T> => {
    const server = await starting;
    started.defer(async () => void (await server.stop()));
    return server;
  };
  const { env } = process;
  const cacheDir = cacheFolder(env.XDG_CACHE_HOME);
  const onProgress = (line: string) => console.error(`  ${line}`);
  const cli =
    env.TEST_TEMPORAL_CLI ??
    (await step('Temporal CLI', () => findTemporalCli({ cacheDir, onProgress })));
  const common = { namespace: 'default', dynamicConfig: TEST_DYNAMIC_CONFIG };
  const startServer = async () => {
    await step('Temporal server', findTemporalServer);
    const { url } = await own(startPostgres({}));
    const dir = temporaryFolder((remove) => started.defer(remove));
    return await own(startTemporalServer({ ...common, postgresUrl: url, dir }));
  };
  // Not TestWorkflowEnvironment.createLocal, because these servers start as in `npm start` and end
  // even if the runner is killed.
  const [databaseUrl, temporalAddress] = await step(
    'PostgreSQL and Temporal',
    async () => {
      const starting = [
        env.TEST_DATABASE_URL ?? own(startPostgres({})).then(({ url }) => url),
        onServer
          ? startServer().then(({ address }) => address)
          : (env.TEST_TEMPORAL_ADDRESS ??
            own(startTemporal({ ...common, cli })).then(({ address }) => address)),
      ];
      await Promise.allSettled(starting);
      return await Promise.all(starting);
    },
  );
  await step('files that the API serves', buildServedFiles);
  await step('workflow bundle', () => keepBuilt(WORKFLOWS));
  const settings: Record<TestSetting, string | undefined> = {
    TEST_TEMPORAL_CLI: cli,
    TEST_DATABASE_URL: databaseUrl,
    TEST_TEMPORAL_ADDRESS: temporalAddress,
    TEST_WORKFLOW_BUNDLE: BUNDLE,
  };
  Object.assign(env, settings);
  const running = started.move();
  return () => running.disposeAsync();
}
