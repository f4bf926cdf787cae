import { createAskActivities } from './ask.ts';
import { createBatchActivities } from './batches.ts';
import { createWebhookActivities } from './deliver.ts';
import type { ActivityDeps } from './deps.ts';
import { createSubjects } from './lookup.ts';
import { createReverifyActivities } from './reverify.ts';
import { createVerifyActivities } from './verify.ts';

/** The activities of all three queues; each worker registers them all and takes only what its queue brings. */
export function createActivities(deps: ActivityDeps) {
  const subjects = createSubjects(deps.db);
  return {
    ...createBatchActivities({ ...deps, subjects }),
    ...createAskActivities({ ...deps, subjects }),
    ...createVerifyActivities({ ...deps, subjects }),
    ...createReverifyActivities(deps),
    ...createWebhookActivities(deps),
  };
}

export type Activities = ReturnType<typeof createActivities>;
