import type { Database } from '../../db/client.ts';
import { admitOne, type CallOutcome, recordOne, type SourceLimits } from '../../db/lookups/sources.ts';
import { outcomeOfTrouble } from '../vendors/step-record.ts';
import type { Ask } from './consult.ts';
import type { VerifierStep } from './verifiers/verifier.ts';

/**
 * Puts questions to verifiers within the limits that hold across all workers: rate, spend, circuit breaker.
 * @param limits by the verifier's id
 */
export function createAsk(db: Database, limits: ReadonlyMap<string, SourceLimits>): Ask {
  return async (verifier, email, signal) => {
    const { id, cost } = verifier;
    const admission = await admitOne(db, id, limits.get(id) ?? NO_LIMITS, cost);
    if (admission.kind === 'spent') return { kind: 'unavailable', afterMs: null };
    if (admission.kind === 'wait') return { kind: 'unavailable', afterMs: admission.afterMs };
    const step = await verifier.check(email, signal);
    // What was sent and not answered may be charged.
    const isCharged = step.kind === 'answer' || (step.kind === 'retry' && step.why === 'unanswered');
    const unspent = isCharged ? 0 : cost;
    await recordOne(db, id, outcomeOf(step), unspent, admission.at);
    return step;
  };
}

const NO_LIMITS: SourceLimits = { rates: [], dailyCredits: null };

function outcomeOf(step: VerifierStep): CallOutcome {
  const answered = step.kind === 'answer' || step.kind === 'greylisted';
  return answered ? { kind: 'answered' } : outcomeOfTrouble(step, false);
}
