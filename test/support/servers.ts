import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { cacheFolder, findTemporalCli } from '../../deploy/local/temporal-cli.ts';
import { bundleWorkflows } from '../../deploy/temporal/workers.ts';
import { TEST_DYNAMIC_CONFIG, type TestSetting } from './environment.ts';

/**
 * What the runner gives each test file, for programs that are no tests: temporary PostgreSQL and Temporal, and the
 * workflow bundle. Sets the settings in the environment of this process.
 * @returns ends the servers
 */
export async function startServers(): Promise<() => Promise<void>> {
  const cacheDir = cacheFolder(process.env.XDG_CACHE_HOME);
  const cli = await findTemporalCli({ cacheDir, onProgress: console.error });
  const folder = await mkdtemp(join(tmpdir(), 'npi-email-enrichment-'));
  const bundle = join(folder, 'workflow-bundle.js');
  const temporalOptions = { cli, namespace: 'default', headless: true, dynamicConfig: TEST_DYNAMIC_CONFIG };
  const [postgres, temporal, { code }] = await Promise.all([
    startPostgres({}),
    startTemporal(temporalOptions),
    bundleWorkflows(),
  ]);
  await writeFile(bundle, code);
  const settings: Record<TestSetting, string> = {
    TEST_DATABASE_URL: postgres.url,
    TEST_TEMPORAL_ADDRESS: temporal.address,
    TEST_TEMPORAL_CLI: cli,
    TEST_WORKFLOW_BUNDLE: bundle,
  };
  Object.assign(process.env, settings);
  return async () => {
    await temporal.stop();
    await postgres.stop();
    await rm(folder, { recursive: true, force: true });
  };
}
