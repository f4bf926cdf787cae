import { createRequire } from 'node:module';
import test from 'ava';
import { filesOf, GROUPS } from './groups.ts';

/** AVA starts all tests of a process at once, and these files were not written for that. */
const TESTS_AT_ONCE = 4;

/**
 * Declares the tests of all files of a group in this process. Each file can also run by itself, as
 * the argument of `npm test`.
 */
export function runTogether(name: keyof typeof GROUPS): void {
  let running = 0;
  const waiting: (() => void)[] = [];
  test.beforeEach(async () => {
    if (running < TESTS_AT_ONCE) running += 1;
    else await new Promise<void>((resolve) => waiting.push(resolve));
  });
  test.afterEach.always(() => {
    const next = waiting.shift();
    if (next) next();
    else running -= 1;
  });
  // AVA starts after the first await, so `import` would let it start between two files.
  const require = createRequire(import.meta.url);
  for (const file of filesOf(GROUPS[name])) require(`../../${file}`);
}
