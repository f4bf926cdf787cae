import { proxyActivities, proxyLocalActivities, workflowInfo } from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import { queuesOf } from './messages.ts';

// Every activity option in one place. Retries are unlimited unless an activity says otherwise by a non-retryable
// failure: money and promises do not give up.

const SHORT_RETRY = { initialInterval: '500ms', backoffCoefficient: 2, maximumInterval: '30s' } as const;

/** Read plans; local, because every batch and lookup does it first and it takes milliseconds. */
export const { planBatch, planLookup } = proxyLocalActivities<Activities>({
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

/** As `sweepOnce`; a round asks verifiers one by one. */
export const { reverifyOnce } = proxyActivities<Activities>({
  startToCloseTimeout: '10m',
  heartbeatTimeout: '30s',
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

/** One vendor, within its share of what is left of the deadline. */
export function asking(vendor: string, npi: string, msLeft: number): Pick<Activities, 'askVendor'> {
  return outside(`${vendor} for NPI ${npi}`, msLeft);
}

/** Our checks of addresses that no vendor is asked for again. */
export function verifying(what: string, npi: string, msLeft: number): Pick<Activities, 'verifyEmails'> {
  return outside(`${what} of NPI ${npi}`, msLeft);
}

/** The registry's answer is worth a minute's wait. */
export function identifying(npi: string, msLeft: number): Pick<Activities, 'identify'> {
  return outside(`registry for NPI ${npi}`, Math.min(msLeft, IDENTIFY_MS));
}

const IDENTIFY_MS = 60_000;

/**
 * What asks someone outside. Attempts are unlimited inside the time given, because a worker's shutdown burns one, and
 * waiting for a turn or for an asynchronous answer is done by retrying.
 */
function outside(summary: string, msLeft: number): Activities {
  return proxyActivities<Activities>({
    taskQueue: queuesOf(workflowInfo().taskQueue).lookups,
    scheduleToCloseTimeout: Math.max(msLeft, 1),
    heartbeatTimeout: Math.min(MAX_HEARTBEAT_MS, Math.max(1000, Math.floor(msLeft / 4))),
    retry: { initialInterval: '1s', backoffCoefficient: 2, maximumInterval: '30s' },
    summary,
  });
}

const MAX_HEARTBEAT_MS = 30_000;

/**
 * One delivery, all its attempts: the schedule comes as `nextRetryDelay`, so that waiting costs no history.
 * @param organizationId where Temporal is set up for it, backlogs are shared out by organization
 */
export function delivering(what: string, organizationId: string): Pick<Activities, 'deliverWebhook'> {
  return proxyActivities<Activities>({
    taskQueue: queuesOf(workflowInfo().taskQueue).webhooks,
    // The attempt itself ends after 15 s; the rest is for reading and recording.
    startToCloseTimeout: '45s',
    // An attempt that died with its worker is made again soon.
    heartbeatTimeout: '10s',
    // Waiting counts as attempts too, so that these are soon at the longest interval.
    retry: { initialInterval: '5s', backoffCoefficient: 2, maximumInterval: '20s' },
    priority: { fairnessKey: organizationId },
    summary: what,
  });
}
