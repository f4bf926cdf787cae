import { pino } from 'pino';
import { installRuntime } from '../../deploy/temporal/workers.ts';

/** The log of services in tests. `TEST_LOG_LEVEL=info` shows it. */
export const quiet = pino({ level: process.env.TEST_LOG_LEVEL ?? 'silent' });

let isInstalled = false;

/**
 * Sends the SDK's log to ours. Must run before the first connection of a process, and may run
 * again.
 */
export function installTestRuntime(): void {
  if (!isInstalled) installRuntime(quiet, null);
  isInstalled = true;
}
