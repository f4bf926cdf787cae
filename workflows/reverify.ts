import { reverifyOnce } from './options.ts';

/** Run by a Schedule: checks stored addresses again that are about to go stale, a few at a time. */
export async function reverify() {
  return await reverifyOnce();
}
