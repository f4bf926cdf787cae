import { setTimeout } from 'node:timers/promises';
import { time } from '../db/metrics.ts';

/**
 * A slot within this time is reserved (`next_slot` in db/migrations), and the caller waits for it
 * here.
 */
const NEAR_MS = 5000;

interface Answer {
  readonly kind: string;
  readonly why?: string;
  readonly afterMs?: number;
}

/**
 * Requests a call of a source, and waits for its slot if it is near. Temporal may start a retry
 * some seconds late, so retries are only used for slots that are further away.
 * @param ask requests the call, as `admitCall` does
 * @returns its last response; if it says `wait` for `rate_limit`, retry the activity after
 * `afterMs`
 * @throws {AbortError} when `signal` aborts
 */
export async function waitForSlot<A extends Answer>(
  source: string,
  ask: () => Promise<A>,
  signal: AbortSignal,
): Promise<A> {
  for (;;) {
    const answer = await ask();
    const { kind, why, afterMs } = answer;
    if (kind !== 'wait' || why !== 'rate_limit' || afterMs === undefined) return answer;
    time('npe_source_slot_wait_seconds', { source }, afterMs / 1000);
    if (afterMs > NEAR_MS) return answer;
    await setTimeout(afterMs, null, { signal });
  }
}
