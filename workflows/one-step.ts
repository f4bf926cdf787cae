import { proxyActivities, setWorkflowOptions, workflowInfo } from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import type { DeliverInput } from './messages.ts';
import { onWebhooksQueue, REVERIFY } from './options.ts';

// Workflows of one activity each.

const { reverifyOnce } = proxyActivities<Activities>(REVERIFY);

/** Run by a Schedule: checks stored addresses again that are about to go stale, a few at a time. */
export async function reverify() {
  return await reverifyOnce();
}

/** One delivery through its whole schedule, after a first attempt that did not decide it or because it is sent again. */
export async function deliver({ deliveryId }: DeliverInput) {
  const { deliverWebhook } = proxyActivities<Activities>(onWebhooksQueue(`webhook ${deliveryId}`));
  return await deliverWebhook({ deliveryId });
}
// It waits for days and outlives the version that started it. One activity and nothing else: any version can go on.
// A cluster without versions refuses the word.
setWorkflowOptions(
  () =>
    workflowInfo().currentDeploymentVersion?.deploymentName ? { versioningBehavior: 'AUTO_UPGRADE' } : {},
  deliver,
);
