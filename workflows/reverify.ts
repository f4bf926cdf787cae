import { reverifyOnce } from './options.ts';

/** Checks stored addresses again before they go stale, a few at a time. A Schedule runs it. */
export async function reverify() {
  return await reverifyOnce();
}
