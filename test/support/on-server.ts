import ava from 'ava';
import { isServerBuilt } from './tools.ts';

const isBuilt = isServerBuilt();
if (!isBuilt)
  console.log(
    "Temporal's real server is not built: its tests are skipped (npm run cluster builds it)",
  );

/**
 * For tests that need Temporal's real server. They are skipped until it is built, because a build
 * takes too long for a test.
 */
export const test = isBuilt ? ava : ava.skip;
