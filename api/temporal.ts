import type { Client } from '@temporalio/client';
import type { Logger } from 'pino';

/** Temporal as the API knows it. */
export interface TemporalDeps {
  readonly client: Client;
  /** The enrichment queue. */
  readonly taskQueue: string;
  /** Why Temporal cannot be used, in one sentence; null where it can. */
  readonly trouble: () => Promise<string | null>;
}

/** How long nobody tries after a failure: the sweep starts what is committed. */
const PAUSE_MS = 5000;

/** Tries to start a workflow; false where it did not, or where Temporal was away a moment ago. */
export type Starter = (start: () => Promise<void>) => Promise<boolean>;

/**
 * Lets a client wait for Temporal once, not every client each time: after a failure the next start is tried by one of
 * them, some seconds later. The log hears when it begins and when it is over.
 */
export function createStarter({ trouble }: Pick<TemporalDeps, 'trouble'>, log: Logger): Starter {
  let pausedUntil = 0;
  let isAway = false;
  return async (start) => {
    if (isAway && performance.now() < pausedUntil) return false;
    pausedUntil = performance.now() + PAUSE_MS;
    try {
      await start();
    } catch (error) {
      pausedUntil = performance.now() + PAUSE_MS;
      if (!isAway) {
        isAway = true;
        // The client does not wait for the reason.
        void trouble()
          .catch(() => null)
          .then((why) => log.error({ err: error, why }, 'workflows cannot be started, the sweep will'));
      }
      return false;
    }
    if (isAway) log.info('workflows can be started again');
    isAway = false;
    return true;
  };
}
