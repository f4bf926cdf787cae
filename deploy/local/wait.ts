import { setTimeout as sleep } from 'node:timers/promises';

const POLL_MS = 50;

/**
 * Asks `look` again and again until it gives something other than `undefined`, which is returned; `undefined`
 * when `timeoutMs` milliseconds have passed without.
 */
export async function poll<T>(
  look: () => T | undefined | Promise<T | undefined>,
  timeoutMs: number,
): Promise<T | undefined> {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    const seen = await look();
    if (seen !== undefined) return seen;
    if (Date.now() >= deadline) return undefined;
    await sleep(POLL_MS);
  }
}
