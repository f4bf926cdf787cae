import { PATTERN_SOURCE } from '../../db/words.ts';
import { type Step, type Subject, stepOfCandidates, type Vendor } from './vendor.ts';

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

async function write(subject: Subject): Promise<Step> {
  const candidates = subject.writtenEmails.map((email) => {
    return {
      email,
      vendorType: 'professional',
      verdict: 'unknown',
      validatedAt: null,
      isCurrent: false,
      confidence: null,
    } as const;
  });
  const identity = { npi: subject.npi, name: null, state: null, employerDomain: null };
  return stepOfCandidates({ candidates, identity, repeatsInput: true, credits: 0 });
}
