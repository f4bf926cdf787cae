import { step } from './support/long-check.ts';
import { TOOLS } from './support/tools.ts';

/**
 * `npm run tools`: prepares the missing tools of the long checks, so that this can run in parallel
 * to other tests. A failure is printed, and does not stop the other tools.
 */
for (const [name, find] of Object.entries(TOOLS))
  await step<unknown>(name, find).catch((error: Error) => console.log(error.message));
