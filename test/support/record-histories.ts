import { startServers } from './servers.ts';

/**
 * Records the histories that test/workflows/replay.test.ts replays: `node test/support/record-histories.ts`. It brings its own
 * servers and takes about a minute.
 *
 * The saved histories stand for workflows that run in production while a new version is deployed. So record anew
 * before the first release of a change only; later, a change that breaks one is patched (workflow.patched), and its
 * new course is added under a new name.
 */
const stop = await startServers();
try {
  const { recordOutcomes, recordWaterfall, recordInterventions } = await import('./history-scenarios.ts');
  await recordOutcomes();
  await recordWaterfall();
  await recordInterventions();
} finally {
  await stop();
}
process.exit();
