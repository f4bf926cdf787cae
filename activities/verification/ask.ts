import type { Database } from '../../db/client.ts';
import { admitOne, type CallOutcome, recordOne, type SourceLimits } from '../../db/sources.ts';
import type { Ask } from './consult.ts';
import type { VerifierStep } from './verifier.ts';

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
  switch (step.kind) {
    case 'answer':
    case 'greylisted':
      return { kind: 'answered' };
    case 'retry':
      return step.why === 'rate_limit'
        ? { kind: 'rate_limit', afterMs: step.afterMs }
        : { kind: 'failed', why: step.why };
    case 'fatal':
      return step.why === 'protocol'
        ? { kind: 'failed', why: `protocol: ${step.field}` }
        : { kind: 'refused', why: step.why };
    default:
      return step satisfies never;
  }
}
