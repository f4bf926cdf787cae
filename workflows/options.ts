import type { ActivityOptions, LocalActivityOptions } from '@temporalio/common';
import { workflowInfo } from '@temporalio/workflow';
import { queuesOf } from './messages.ts';

// Every activity option in one place. Retries are unlimited unless an activity says otherwise by a non-retryable
// failure: money and promises do not give up.

const SHORT_RETRY = { initialInterval: '500ms', backoffCoefficient: 2, maximumInterval: '30s' } as const;

/** Plans are local activities: every batch and lookup makes one first, and it takes milliseconds. */
export const PLAN: LocalActivityOptions = { startToCloseTimeout: '15s', retry: SHORT_RETRY };

/** Gives the credits back and settles as `failed`. A compensation has no deadline. */
export const REFUND: ActivityOptions = { startToCloseTimeout: '20s', retry: SHORT_RETRY };

/** A round asks verifiers one by one. Never retried: the Schedule's next round is. */
export const REVERIFY: ActivityOptions = {
  startToCloseTimeout: '10m',
  heartbeatTimeout: '30s',
  retry: { maximumAttempts: 1 },
};

/** Settles after the vendors have answered. Past the deadline there is nothing left to win: the refund takes over. */
export function untilDeadline(msLeft: number): LocalActivityOptions {
  return { ...PLAN, scheduleToCloseTimeout: Math.max(msLeft, MIN_SETTLE_MS) };
}

const MIN_SETTLE_MS = 5000;

/**
 * What asks someone outside. Attempts are unlimited inside the time given, because a worker's shutdown burns one, and
 * waiting for a turn or for an asynchronous answer is done by retrying.
 */
export function onLookupsQueue(summary: string, msLeft: number): ActivityOptions {
  return {
    taskQueue: queuesOf(workflowInfo().taskQueue).lookups,
    scheduleToCloseTimeout: Math.max(msLeft, 1),
    heartbeatTimeout: Math.min(MAX_HEARTBEAT_MS, Math.max(1000, Math.floor(msLeft / 4))),
    retry: { initialInterval: '1s', backoffCoefficient: 2, maximumInterval: '30s' },
    summary,
  };
}

const MAX_HEARTBEAT_MS = 30_000;

/**
 * One delivery, all its attempts: the schedule comes as `nextRetryDelay`, so that waiting costs no history.
 * @param organizationId if Temporal is set up for it, backlogs are shared out by organization
 */
export function onWebhooksQueue(summary: string, organizationId: string): ActivityOptions {
  return {
    taskQueue: queuesOf(workflowInfo().taskQueue).webhooks,
    // The attempt itself ends after 15 s; the rest is for reading and recording.
    startToCloseTimeout: '45s',
    // An attempt that died with its worker is made again soon.
    heartbeatTimeout: '10s',
    // Waiting counts as attempts too, so that these are soon at the longest interval.
    retry: { initialInterval: '5s', backoffCoefficient: 2, maximumInterval: '20s' },
    priority: { fairnessKey: organizationId },
    summary,
  };
}
