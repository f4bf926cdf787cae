import type { WorkflowDefinitionOptions } from '@temporalio/common';
import {
  type ActivityOptions,
  proxyActivities,
  proxyLocalActivities,
  workflowInfo,
} from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import { queuesOf } from './messages.ts';

// Options of activities and workflows. Refunds and webhooks must eventually succeed, so activities are
// retried without limit, except after a failure that is marked as non-retryable.

/**
 * Activities that only need PostgreSQL. They take milliseconds, so they run as local activities
 * inside the workflow task. While PostgreSQL is down, the delay between retries is a timer and does
 * not occupy a worker.
 */
export const local = proxyLocalActivities<Activities>({
  startToCloseTimeout: '10s',
  localRetryThreshold: '2s',
  retry: { initialInterval: '500ms', maximumInterval: '30s' },
});

/**
 * Refunds the credits and settles the request as `failed`. It has no deadline, because it must
 * happen even after the deadline of the request.
 */
export const { refundCredits } = proxyActivities<Activities>({
  startToCloseTimeout: '20s',
  retry: { initialInterval: '500ms', maximumInterval: '30s' },
  summary: 'refund',
});

/**
 * The longest heartbeat time-out. `withHeartbeat` sends a heartbeat after two thirds of the
 * time-out, which is 32 s here. A vendor call takes 30 s at most by default, so it ends before its
 * first heartbeat.
 */
const MAX_HEARTBEAT_MS = 48_000;

/**
 * Returns the activities that ask an external source, with options for the lookups queue. The
 * number of attempts is not limited. An attempt ends, and is retried later, whenever it must wait
 * for a rate-limit slot or for a vendor's job, or when its worker shuts down.
 * @param msLeft time for all attempts together
 * @param activityId names the source. Replay compares these ids, so it detects when the order of
 * the sources has changed.
 */
export function activitiesOfSource(
  msLeft: number,
  activityId: string,
  summary: string,
): Activities {
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
 * Returns the activities that attempt deliveries. The activity itself sets the delay before its
 * next attempt (`nextRetryDelay`), so waiting adds no events to the history.
 */
export function deliveries(taskQueue: string, summary: string): Activities {
  return proxyActivities<Activities>({
    taskQueue,
    // An activity waits up to 10 s for a free slot, and sending takes up to 15 s. The remaining
    // time is for reading and recording the delivery.
    startToCloseTimeout: '60s',
    // If a worker dies, Temporal starts its attempts again after 10 s.
    heartbeatTimeout: '10s',
    // Temporal makes the interval longer after each attempt, and a wait for a slot counts as one.
    // So the interval soon reaches its maximum, and the maximum must be short.
    retry: { initialInterval: '5s', maximumInterval: '20s' },
    summary,
  });
}

/**
 * Sends a test event. It is never sent twice, because a person waits for the result and can send
 * another one. The time-out of the workflow is shorter.
 */
export const { postTestEvent } = proxyActivities<Activities>({
  startToCloseTimeout: '60s',
  retry: { maximumAttempts: 1 },
  summary: 'test event',
});

/**
 * Submits the next part of an upload. Waiting for the rate limit, for open requests, or for credits
 * is a retry, so it adds no events to the history.
 */
export const { submitNextPart } = proxyActivities<Activities>({
  startToCloseTimeout: '30s',
  retry: { initialInterval: '1s', maximumInterval: '30s' },
  summary: 'next part',
});

/**
 * Returns the activity that sends the email about the end of an upload. It is on the queue of
 * deliveries, so that a mail server that hangs does not delay batches.
 */
export function notices(taskQueue: string): Activities {
  return proxyActivities<Activities>({
    taskQueue: queuesOf(taskQueue).webhooks,
    startToCloseTimeout: '60s',
    scheduleToCloseTimeout: '1d',
    retry: { initialInterval: '10s', maximumInterval: '10m' },
    summary: 'email',
  });
}

/**
 * The activity of one run of the Temporal Schedule `reverify`. A failed run is not retried, because
 * the next run checks the same addresses.
 */
export const { reverifyOnce } = proxyActivities<Activities>({
  startToCloseTimeout: '10m',
  heartbeatTimeout: '30s',
  retry: { maximumAttempts: 1 },
  summary: 'addresses that go stale',
});

/**
 * Returns the options of a workflow that may run for days, longer than the worker version that
 * started it. With AUTO_UPGRADE it continues on a newer version, which must be able to replay its
 * history. The server rejects this option if workers are not versioned.
 */
export function upgrading(): WorkflowDefinitionOptions {
  const isVersioned = !!workflowInfo().currentDeploymentVersion?.deploymentName;
  return isVersioned ? { versioningBehavior: 'AUTO_UPGRADE' } : {};
}
