import { proxyActivities } from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import type { DeliverInput, DeliveryResult, ReverifyResult } from './messages.ts';
import { onWebhooksQueue, REVERIFY } from './options.ts';

// Workflows of one activity each.

const { reverifyOnce } = proxyActivities<Activities>(REVERIFY);

/** Run by a Schedule: checks stored addresses again that are about to go stale, a few at a time. */
export async function reverify(): Promise<ReverifyResult> {
  return await reverifyOnce();
}

/** A delivery that is sent again, after its batch was over or before: the whole schedule anew. */
export async function deliverAgain({ deliveryId, organizationId }: DeliverInput): Promise<DeliveryResult> {
  const { deliverWebhook } = proxyActivities<Activities>(
    onWebhooksQueue('webhook, sent again', organizationId),
  );
  return await deliverWebhook({ deliveryId });
}
