import { createAskActivities } from './ask.ts';
import { createBatchActivities } from './batch.ts';
import { createWebhookActivities } from './deliver.ts';
import type { ActivityDeps } from './deps.ts';
import { createLookupActivities, createSubjects } from './lookup.ts';
import { createReverifyActivities } from './reverify.ts';
import { createSettleActivities } from './settle.ts';
import { createTestEventActivities } from './test-event.ts';
import { createUploadActivities } from './upload.ts';
import { createVerifyActivities } from './verify.ts';

/**
 * Returns the activities of all three queues. Each worker registers all activities, but only
 * receives those that are sent to its queue.
 */
export function createActivities(deps: ActivityDeps) {
  const subjects = createSubjects(deps.db);
  return {
    ...createBatchActivities(deps),
    ...createLookupActivities({ ...deps, subjects }),
    ...createSettleActivities(deps),
    ...createAskActivities({ ...deps, subjects }),
    ...createVerifyActivities({ ...deps, subjects }),
    ...createReverifyActivities(deps),
    ...createWebhookActivities(deps),
    ...createTestEventActivities(deps),
    ...createUploadActivities(deps),
  };
}

export type Activities = ReturnType<typeof createActivities>;
