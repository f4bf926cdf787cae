import { step } from './support/long-check.ts';
import { TOOLS } from './support/tools.ts';

/**
 * `npm run tools`: makes what the long checks need, where it is not there yet, so that it can be done beside other
 * tests. What cannot be made is told, and keeps nothing else from being made.
 */
for (const [name, find] of Object.entries(TOOLS))
  await step<unknown>(name, find).catch((error: Error) => console.log(error.message));
