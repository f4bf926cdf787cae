import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { bundleWorkflows } from '../../deploy/bundle.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { cacheFolder, findTemporalCli } from '../../deploy/local/temporal-cli.ts';
import type { TestSetting } from './environment.ts';

/**
 * Records the histories that test/replay.test.ts replays: `node test/support/record-histories.ts`. It brings its own
 * servers and takes about a minute.
 *
 * The saved histories stand for workflows that run in production while a new version is deployed. So record anew
 * before the first release of a change only; later, a change that breaks one is patched (workflow.patched), and its
 * new course is added under a new name.
 */
const cli = await findTemporalCli({
  cacheDir: cacheFolder(process.env.XDG_CACHE_HOME),
  onProgress: console.log,
});
const folder = await mkdtemp(join(tmpdir(), 'histories-'));
const bundle = join(folder, 'bundle.js');
const [postgres, temporal, { code }] = await Promise.all([
  startPostgres({}),
  startTemporal({ cli, namespace: 'default', headless: true, searchAttributes: {} }),
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
try {
  const { recordOutcomes, recordWaterfall, recordInterventions } = await import('./history-scenarios.ts');
  await recordOutcomes();
  await recordWaterfall();
  await recordInterventions();
} finally {
  await temporal.stop();
  await postgres.stop();
  await rm(folder, { recursive: true, force: true });
}
process.exit();
