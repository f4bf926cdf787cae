import {
  type ActivityOptions,
  proxyActivities,
  proxyLocalActivities,
  workflowInfo,
} from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import { queuesOf } from './messages.ts';

// Activity options. Retries are unlimited unless an activity fails with a non-retryable
// failure, because refunds and webhooks must happen in the end.

/**
 * Activities that only need PostgreSQL. They take milliseconds, so they run inside the workflow
 * task. While PostgreSQL is down, Temporal waits with timers, which hold no worker.
 */
export const db = proxyLocalActivities<Activities>({
  startToCloseTimeout: '10s',
  localRetryThreshold: '2s',
  retry: { initialInterval: '500ms', maximumInterval: '30s' },
});

/** Refunds the credits and settles the request as `failed`. A compensation has no deadline. */
export const { refundCredits } = proxyActivities<Activities>({
  startToCloseTimeout: '20s',
  retry: { initialInterval: '500ms', maximumInterval: '30s' },
  summary: 'refund',
});

/**
 * The SDK sends heartbeats at two thirds of this time-out. A call of 30 s, the longest by default,
 * ends before the first.
 */
const MAX_HEARTBEAT_MS = 48_000;

/**
 * Returns activities that ask an external source on the lookups queue, for at most `msLeft`,
 * including retries. A worker's shutdown uses up an attempt, and waiting for a slot or a job is a
 * retry, so attempts are unlimited within that time.
 * @param activityId the source; replay compares it and so detects a different order of sources
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

/**
 * Returns activities that attempt deliveries. The schedule comes as `nextRetryDelay`, so waiting
 * adds no history.
 */
export function deliveries(taskQueue: string, summary: string): Activities {
  return proxyActivities<Activities>({
    taskQueue,
    // An attempt waits up to 10 s for a slot and ends after 15 s. The rest is for reading and
    // recording.
    startToCloseTimeout: '60s',
    // An attempt that died with its worker is soon repeated.
    heartbeatTimeout: '10s',
    // Waiting counts as attempts too, so retries soon come at the longest interval.
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
