import type { ActivityOptions, LocalActivityOptions } from '@temporalio/common';
import {
  ActivityFailure,
  ApplicationFailure,
  isCancellation,
  proxyActivities,
  proxyLocalActivities,
  TemporalFailure,
  workflowInfo,
} from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import { queuesOf } from './messages.ts';

// Every activity option in one place. Retries are unlimited unless an activity says otherwise by a non-retryable
// failure: money and promises do not give up.

const SHORT_RETRY = { initialInterval: '500ms', backoffCoefficient: 2, maximumInterval: '30s' } as const;

/** What settles and plans. It has no deadline: what is late settles as `failed`. */
const STEP = { startToCloseTimeout: '20s', retry: SHORT_RETRY } as const satisfies ActivityOptions;

/** Gives the credits back and settles as `failed`. A compensation has no deadline. */
export const REFUND: ActivityOptions = { ...STEP, summary: 'refund' };

const LOCAL: LocalActivityOptions = {
  startToCloseTimeout: '10s',
  scheduleToCloseTimeout: '15s',
  retry: { ...SHORT_RETRY, maximumAttempts: 3 },
};

/**
 * An activity of milliseconds, run within the workflow task, which saves a round trip. If that fails, because
 * PostgreSQL is away, it becomes a normal activity: what waits then waits in Temporal and holds no worker.
 */
export function atOnce<Name extends keyof Activities>(name: Name): Activities[Name] {
  const local = proxyLocalActivities<Activities>({ ...LOCAL, summary: name })[name] as Activity;
  const remote = proxyActivities<Activities>({ ...STEP, summary: name })[name] as Activity;
  const run: Activity = async (input) => {
    try {
      return await local(input);
    } catch (error) {
      throwBug(error);
      if (isCancellation(error) || isPermanent(error)) throw error;
      return await remote(input);
    }
  };
  return run as Activities[Name];
}

/**
 * Throws an error that is not Temporal's: a bug of ours. Out of a workflow function it fails the workflow task, which
 * Temporal retries until the bug is gone. So operators see it, and the sweep refunds the request at its deadline.
 */
export function throwBug(error: unknown): void {
  if (!(error instanceof TemporalFailure)) throw error;
}

type Activity = (input: never) => Promise<unknown>;

function isPermanent(error: unknown): boolean {
  return (
    error instanceof ActivityFailure &&
    error.cause instanceof ApplicationFailure &&
    !!error.cause.nonRetryable
  );
}

/** A round asks verifiers one by one. Never retried: the Schedule's next round is. */
export const REVERIFY: ActivityOptions = {
  summary: 'addresses that go stale',
  startToCloseTimeout: '10m',
  heartbeatTimeout: '30s',
  retry: { maximumAttempts: 1 },
};

/**
 * What asks someone outside. Attempts are unlimited inside the time given, because a worker's shutdown burns one, and
 * waiting for a turn or for an asynchronous answer is done by retrying.
 * @param activityId says who is asked: replay compares it, and so sees another order
 */
export function onLookupsQueue(activityId: string, summary: string, msLeft: number): ActivityOptions {
  return {
    activityId,
    taskQueue: queuesOf(workflowInfo().taskQueue).lookups,
    scheduleToCloseTimeout: Math.max(msLeft, 1),
    heartbeatTimeout: Math.min(MAX_HEARTBEAT_MS, Math.max(1000, Math.floor(msLeft / 3))),
    retry: { initialInterval: '1s', backoffCoefficient: 2, maximumInterval: '30s' },
    summary,
  };
}

/** A call of 30 s, which is the most by default, is over before its first heartbeat at two thirds. */
const MAX_HEARTBEAT_MS = 48_000;

/**
 * Deliveries. The schedule comes as `nextRetryDelay`, so that waiting costs no history.
 */
export function onWebhooksQueue(summary: string): ActivityOptions {
  return {
    taskQueue: queuesOf(workflowInfo().taskQueue).webhooks,
    // An attempt ends after 15 s, and waits for room up to 10 s; the rest is for reading and recording.
    startToCloseTimeout: '60s',
    // An attempt that died with its worker is made again soon.
    heartbeatTimeout: '10s',
    // Waiting counts as attempts too, so that these are soon at the longest interval.
    retry: { initialInterval: '5s', backoffCoefficient: 2, maximumInterval: '20s' },
    summary,
  };
}
