import { PATTERN_SOURCE } from '../../db/words.ts';
import type { Step, Subject, Vendor } from './vendor.ts';

/**
 * A source without a vendor: it writes the person's address itself, in the form that the addresses
 * of the person's colleagues in the directory have. It costs nothing, and a verifier then checks
 * the address, so it comes before all vendors. Its address is a guess, so it never counts as a
 * source that knows the person.
 */
export const PATTERN: Vendor = {
  id: PATTERN_SOURCE,
  needs: ['name', 'pattern'],
  gives: ['professional'],
  isDated: false,
  repeatIsFree: true,
  callMs: 1000,
  cost: () => 0,
  submit: write,
  // `submit` responds at once, so there is never a job.
  poll: (_jobRef, subject) => write(subject),
};

async function write({ npi, writtenEmail: email }: Subject): Promise<Step> {
  if (email === null) return { kind: 'skip', missing: ['pattern'] };
  const candidate = {
    email,
    vendorType: 'professional',
    verdict: 'unknown',
    validatedAt: null,
    isCurrent: false,
    confidence: null,
  } as const;
  const identity = { npi, name: null, state: null, employerDomain: null };
  return {
    kind: 'found',
    candidates: [candidate],
    identity,
    repeatsInput: true,
    credits: 0,
  };
}
