import {
  type ActivityOptions,
  proxyActivities,
  proxyLocalActivities,
  workflowInfo,
} from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import { queuesOf } from './messages.ts';

// Every activity option in one place. Retries are unlimited unless an activity fails with a non-retryable failure, because
// refunds and webhooks must happen in the end.

/**
 * Activities that only need PostgreSQL. They take milliseconds, so they run inside the workflow task. While PostgreSQL is
 * away, Temporal waits with timers, which hold no worker.
 */
export const db = proxyLocalActivities<Activities>({
  startToCloseTimeout: '10s',
  localRetryThreshold: '2s',
  retry: { initialInterval: '500ms', maximumInterval: '30s' },
});

/** Gives the credits back and settles as `failed`. A compensation has no deadline. */
export const { refundCredits } = proxyActivities<Activities>({
  startToCloseTimeout: '20s',
  retry: { initialInterval: '500ms', maximumInterval: '30s' },
  summary: 'refund',
});

/** Heartbeats go out at two thirds of the time-out, so a call of 30 s, the longest by default, needs none. */
const MAX_HEARTBEAT_MS = 48_000;

/**
 * Activities that ask a source outside, on the lookups queue, for `msLeft` at most, retries included. A worker's shutdown
 * uses up an attempt, and waiting for a slot or a job is a retry: so attempts are unlimited within that time.
 * @param activityId names the source: replay compares it, and so detects another order of sources
 */
export function askFor(msLeft: number, activityId: string, summary: string): Activities {
  const options: ActivityOptions = {
    activityId,
    taskQueue: queuesOf(workflowInfo().taskQueue).lookups,
    scheduleToCloseTimeout: Math.max(msLeft, 1),
    heartbeatTimeout: Math.min(MAX_HEARTBEAT_MS, Math.max(1000, Math.floor(msLeft / 3))),
    retry: { initialInterval: '1s', maximumInterval: '30s' },
    summary,
  };
  return proxyActivities<Activities>(options);
}

/** Activities that make attempts of deliveries. The schedule comes as `nextRetryDelay`, so waiting costs no history. */
export function deliveries(taskQueue: string, summary: string): Activities {
  return proxyActivities<Activities>({
    taskQueue,
    // An attempt ends after 15 s, and waits for a slot for up to 10 s. The rest is for reading and recording.
    startToCloseTimeout: '60s',
    // An attempt that died with its worker is made again soon.
    heartbeatTimeout: '10s',
    // Waiting counts as attempts too, so these soon come at the longest interval.
    retry: { initialInterval: '5s', maximumInterval: '20s' },
    summary,
  });
}

/** A round of the Schedule `reverify`. It is not retried, because the next round does the work. */
export const { reverifyOnce } = proxyActivities<Activities>({
  startToCloseTimeout: '10m',
  heartbeatTimeout: '30s',
  retry: { maximumAttempts: 1 },
  summary: 'addresses that go stale',
});
