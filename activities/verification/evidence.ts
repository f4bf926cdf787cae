import type { Verdict } from '../vendors/vendor.ts';
import type { Reason } from './reasons.ts';

/** One judgement of an address, as it is kept with it: by our own checks or by a verifier. */
export interface Evidence {
  readonly kind: 'local' | 'verifier';
  /** The verifier's id; `service` for our own checks. */
  readonly source: string;
  readonly verdict: Verdict;
  readonly reason: Reason | null;
  readonly durationMs: number;
}
