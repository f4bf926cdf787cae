import { setTimeout } from 'node:timers/promises';
import { time } from '../db/metrics.ts';

/**
 * A slot that is so near is reserved (`next_slot` in db/migrations), and its owner waits for it
 * here.
 */
const NEAR_MS = 5000;

interface Answer {
  readonly kind: string;
  readonly why?: string;
  readonly afterMs?: number;
}

/**
 * Asks for a call of a source, and waits for its slot if that is near. Temporal starts a retry up
 * to some seconds too late, so retries are only used for slots that are further away.
 * @param ask asks for the call, as `admitCall` does
 * @returns its last answer. If that waits for `rate_limit`, the activity is to be retried after
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
