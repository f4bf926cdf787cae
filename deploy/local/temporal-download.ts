import { TestWorkflowEnvironment } from '@temporalio/testing';

/**
 * Makes the SDK put its Temporal CLI into the folder named by the first argument. The SDK has no call for that
 * alone: it downloads when it is to start a dev server and has none.
 */
const [downloadDir] = process.argv.slice(2);
if (downloadDir === undefined) throw new Error('usage: temporal-download.ts FOLDER');
const environment = await TestWorkflowEnvironment.createLocal({
  server: { executable: { type: 'cached-download', downloadDir } },
});
await environment.teardown();
