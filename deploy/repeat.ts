import { setTimeout } from 'node:timers/promises';
import type { Logger } from 'pino';

/**
 * Does something every so often until `signal` ends it. What fails is tried again; the log hears of the first failure
 * in a row, and of the end of them.
 */
export async function repeat(
  what: string,
  everyMs: number,
  { signal, log }: { readonly signal: AbortSignal; readonly log: Logger },
  work: () => Promise<unknown>,
): Promise<void> {
  let isFailing = false;
  while (await setTimeout(everyMs, true, { signal }).catch(() => false)) {
    try {
      await work();
      if (isFailing) log.info({ what }, 'succeeds again');
      isFailing = false;
    } catch (error) {
      if (!isFailing) log.warn({ err: error, what }, 'failed, and is tried again');
      isFailing = true;
    }
  }
}
