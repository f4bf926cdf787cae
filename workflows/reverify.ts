import { reverifyOnce } from './options.ts';

/**
 * Checks some of the stored addresses again before their verdicts become too old to use. A Temporal
 * Schedule starts this workflow regularly.
 */
export async function reverify() {
  return await reverifyOnce();
}
