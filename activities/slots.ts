import { setTimeout } from 'node:timers/promises';
import { time } from '../db/operations/metrics.ts';

/**
 * If the next free slot is at most this far in the future, it is reserved for the caller
 * (`next_slot` in db/migrations), and the caller waits for it in `waitForSlot`.
 */
const NEAR_MS = 5000;

interface Permission {
  readonly kind: string;
  readonly why?: string;
  readonly afterMs?: number;
}

/**
 * Asks for permission to call a source. If the rate limit allows a call within `NEAR_MS`, waits for
 * that moment. For later slots the caller must retry its activity. Temporal may start a retry some
 * seconds late, so a retry is too inexact for near slots.
 * @param ask asks for permission, as `admitCall` does
 * @returns the last result of `ask`. If it is `wait` because of `rate_limit`, the caller retries
 * its activity after `afterMs`.
 * @throws {AbortError} when `signal` aborts
 */
export async function waitForSlot<A extends Permission>(
  source: string,
  ask: () => Promise<A>,
  signal: AbortSignal,
): Promise<A> {
  for (;;) {
    const permission = await ask();
    const { kind, why, afterMs } = permission;
    if (kind !== 'wait' || why !== 'rate_limit' || afterMs === undefined)
      return permission;
    time('npe_source_slot_wait_seconds', { source }, afterMs / 1000);
    if (afterMs > NEAR_MS) return permission;
    await setTimeout(afterMs, null, { signal });
  }
}
