import { proxyActivities, proxyLocalActivities, workflowInfo } from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import { queuesOf } from './messages.ts';

// Every activity option in one place. Retries are unlimited unless an activity says otherwise by a non-retryable
// failure: money and promises do not give up.

const SHORT_RETRY = { initialInterval: '500ms', backoffCoefficient: 2, maximumInterval: '30s' } as const;

/** Reads the plan; local, because every batch does it first and it takes milliseconds. */
export const { planBatch } = proxyLocalActivities<Activities>({
  startToCloseTimeout: '15s',
  retry: SHORT_RETRY,
});

/** Gives the credits back and settles as `failed`. A compensation has no deadline. */
export const { refundCredits } = proxyActivities<Activities>({
  startToCloseTimeout: '20s',
  retry: SHORT_RETRY,
});

/** Never retried: the next sweep is. The heartbeat tells soon that a worker died, so that no sweep is skipped for it. */
export const { sweepOnce } = proxyActivities<Activities>({
  startToCloseTimeout: '2m',
  heartbeatTimeout: '15s',
  retry: { maximumAttempts: 1 },
});

/** Settles after the vendors have answered. Past the deadline there is nothing left to win: the refund takes over. */
export function settling(msLeft: number): Pick<Activities, 'settleRequest'> {
  return proxyLocalActivities<Activities>({
    startToCloseTimeout: '15s',
    scheduleToCloseTimeout: Math.max(msLeft, MIN_SETTLE_MS),
    retry: SHORT_RETRY,
  });
}

const MIN_SETTLE_MS = 5000;

/**
 * One vendor, within what is left of the deadline. Attempts are unlimited inside it, because a worker's shutdown
 * burns one and an asynchronous vendor is polled by retrying.
 */
export function asking(vendor: string, npi: string, msLeft: number): Pick<Activities, 'askVendor'> {
  return proxyActivities<Activities>({
    taskQueue: queuesOf(workflowInfo().taskQueue).lookups,
    scheduleToCloseTimeout: msLeft,
    heartbeatTimeout: Math.min(MAX_HEARTBEAT_MS, Math.max(1000, Math.floor(msLeft / 4))),
    retry: { initialInterval: '1s', backoffCoefficient: 2, maximumInterval: '30s' },
    summary: `${vendor} for NPI ${npi}`,
  });
}

const MAX_HEARTBEAT_MS = 30_000;

/** One delivery, all its attempts: the schedule comes as `nextRetryDelay`, so that waiting costs no history. */
export function delivering(what: string): Pick<Activities, 'deliverWebhook'> {
  return proxyActivities<Activities>({
    taskQueue: queuesOf(workflowInfo().taskQueue).webhooks,
    // The attempt itself ends after 15 s; the rest is for reading and recording.
    startToCloseTimeout: '45s',
    // An attempt that died with its worker is made again soon.
    heartbeatTimeout: '15s',
    retry: { initialInterval: '5s', backoffCoefficient: 2, maximumInterval: '1m' },
    summary: what,
  });
}
