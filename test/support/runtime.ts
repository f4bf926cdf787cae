import { pino } from 'pino';
import type { WorkflowControl } from '../../activities/deps.ts';
import { installRuntime } from '../../deploy/temporal/workers.ts';

/** The log of services in tests. `TEST_LOG_LEVEL=info` shows it. */
export const quiet = pino({ level: process.env.TEST_LOG_LEVEL ?? 'silent' });

const done = async (): Promise<void> => {};
/** Starts and signals no workflow, for tests of activities without workflows. */
export const NO_TEMPORAL: WorkflowControl = {
  namespace: '',
  startBatch: done,
  signalBatch: done,
  startDelivery: done,
  startUpload: done,
  stateOf: async () => 'unknown',
};

let isInstalled = false;

/**
 * Sends the SDK's log to ours. Must run before the first connection of a process, and may run
 * again.
 */
export function installTestRuntime(): void {
  if (!isInstalled) installRuntime(quiet, null);
  isInstalled = true;
}
