import type { CallOutcome } from '../../db/lookups/sources.ts';
import type { Step } from './vendor.ts';

// What one step of a vendor's is worth in the records: its reason, its cost, and what it says about the vendor.

/** A step that ends an attempt. */
export type Answered = Exclude<Step, { kind: 'pending' }>;
type Trouble = Extract<Step, { kind: 'retry' | 'fatal' }>;

/** In one or a few words; null where the kind says it all. */
export function reasonOf(step: Answered): string | null {
  switch (step.kind) {
    case 'miss':
      return step.reason;
    case 'skip':
      return `missing ${step.missing.join(', ')}`;
    case 'retry':
      return step.why;
    case 'fatal':
      return step.why === 'protocol' ? `protocol: ${step.field}` : step.why;
    case 'blocked':
      return 'privacy';
    case 'found':
      return null;
    default:
      return step satisfies never;
  }
}

/** In the vendor's credits. An answer that cannot be read was an answer, and so probably charged. */
export function creditsOf(step: Answered, cost: number): number {
  switch (step.kind) {
    case 'found':
      return step.credits ?? cost;
    case 'miss':
      return step.credits ?? 0;
    case 'fatal':
      return step.why === 'protocol' ? cost : 0;
    case 'skip':
    case 'retry':
    case 'blocked':
      return 0;
    default:
      return step satisfies never;
  }
}

/** @param again whether the vendor has had the same question before */
export function outcomeOf(step: Answered, again: boolean): CallOutcome {
  switch (step.kind) {
    case 'found':
    case 'miss':
    case 'skip':
    case 'blocked':
      return { kind: 'answered' };
    case 'retry':
    case 'fatal':
      return outcomeOfTrouble(step, again);
    default:
      return step satisfies never;
  }
}

/**
 * What it says about a source, be it a vendor, a verifier or the registry, that it did not answer.
 * @param again whether the source has had the same question before
 */
export function outcomeOfTrouble(step: Trouble, again: boolean): CallOutcome {
  if (step.kind === 'retry') {
    return step.why === 'rate_limit'
      ? { kind: 'rate_limit', afterMs: step.afterMs }
      : { kind: again ? 'failed_again' : 'failed', why: step.why };
  }
  // One record that cannot be read says little about the source; many in a row open the breaker.
  return step.why === 'protocol'
    ? { kind: 'failed', why: `protocol: ${step.field}` }
    : { kind: 'refused', why: step.why };
}
