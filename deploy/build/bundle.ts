import { fileURLToPath } from 'node:url';
import { bundleWorkflowCode, type WorkflowBundle } from '@temporalio/worker';

/** Bundles the workflows as the worker runs them; takes a few seconds. */
export function bundleWorkflows(): Promise<WorkflowBundle> {
  return bundleWorkflowCode({
    workflowsPath: fileURLToPath(new URL('../../workflows/index.ts', import.meta.url)),
    // Webpack's own progress is noise in a worker's log; its errors are thrown.
    logger: { log() {}, trace() {}, debug() {}, info() {}, warn() {}, error: console.error },
  });
}
