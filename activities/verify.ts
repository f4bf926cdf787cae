import type { ApplicationFailure } from '@temporalio/common';
import { hasStoredEmail, listUnchecked, recordEvidence, recordVerdict } from '../db/directory.ts';
import type { WantedType } from '../db/words.ts';
import type { VendorAnswer } from '../workflows/messages.ts';
import { retryLater } from './failures.ts';
import type { ActivityDeps } from './index.ts';
import type { Decided } from './verification/check.ts';

export interface ToVerify {
  readonly npi: string;
  readonly lookupId: string;
  readonly wantedType: WantedType;
  /** True where a mail server that asked to come back later has had its time. */
  readonly last: boolean;
}

export type Verify = (what: ToVerify, signal: AbortSignal) => Promise<VendorAnswer>;

/**
 * Makes the check of every address of an NPI that waits for one. A check that cannot be made now throws, so that the
 * activity is tried again: a resolver's or a verifier's bad moment is not held against an address.
 */
export function createVerify({ db, check, rules }: Pick<ActivityDeps, 'db' | 'check' | 'rules'>): Verify {
  return async ({ npi, lookupId, wantedType, last }, signal) => {
    const { freshnessMs } = rules;
    const write = (email: string, decided: Decided) =>
      recordVerdict(db, { npi, email, lookupId }, decided, decided.evidence);
    let later: string | null = null;
    let undecided: string | null = null;
    let notNow: ApplicationFailure | null = null;
    for (const candidate of await listUnchecked(db, npi)) {
      const checked = await check(candidate, signal);
      switch (checked.kind) {
        case 'transient':
          notNow = retryLater('verification', checked.reason, checked.afterMs);
          break;
        case 'later':
          if (last) await write(candidate.email, checked.otherwise);
          else {
            await recordEvidence(db, { npi, email: candidate.email, lookupId }, checked.evidence);
            later = checked.reason;
          }
          break;
        case 'decided':
          // Without a word of a verifier that might have told it stays in line, for this lookup and the next.
          if (checked.definitive) await write(candidate.email, checked);
          else undecided = checked.reason;
          break;
        default:
          checked satisfies never;
      }
    }
    if (await hasStoredEmail(db, { npi, wantedType, freshnessMs, lookupId }))
      return { kind: 'found', reason: null };
    if (notNow !== null) throw notNow;
    if (later !== null) return { kind: 'later', reason: later };
    if (undecided !== null) return { kind: 'fatal', reason: undecided };
    return { kind: 'unusable', reason: 'none_valid' };
  };
}
