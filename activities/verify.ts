import { Context } from '@temporalio/activity';
import type { ApplicationFailure } from '@temporalio/common';
import {
  type ClaimedEmail,
  claimUnchecked,
  recordCheck,
  releaseUnchecked,
  standingOf,
} from '../db/lookups/candidates.ts';
import { recordRefused } from '../db/lookups/vendor-attempts.ts';
import type { WantedType } from '../db/words.ts';
import type { VendorAnswer } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { retryLater } from './failures.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { Subjects } from './lookup.ts';
import { answerForSandbox } from './sandbox.ts';
import { type RequestIds, settleFound } from './settle.ts';
import type { Subject } from './vendors/vendor.ts';
import type { Checked, Decided } from './verification/check.ts';
import { classify } from './verification/domains.ts';

interface ToVerify {
  readonly requestId: string;
  readonly npi: string;
  readonly lookupId: string;
  readonly wantedType: WantedType;
  /**
   * If a mail server asked to come back later: `first` leaves it alone, `early` asks again because
   * there is no more time, `over` asks again after its pause and takes the answer as it is.
   */
  readonly patience: 'first' | 'early' | 'over';
  /** Whom it is about, if that is known. */
  readonly subject?: Subject;
}

type VerifyDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'check' | 'rules'> & {
  readonly subjects: Subjects;
};

/**
 * Verifiers one after the other, each up to 90 s; a claim that is older belongs to a dead worker.
 */
const CLAIM_MS = 120_000;
/** A name server that has not answered for so long is not having a bad moment. */
const DNS_PATIENCE_MS = 30_000;

/** Our checks of addresses that no vendor is asked for again. */
export function createVerifyActivities(deps: VerifyDeps) {
  return {
    /**
     * Checks the addresses of an NPI that are known already, or that a mail server asked to come
     * back for, and settles with one that passes.
     */
    async verifyEmails(what: ToVerify & RequestIds): Promise<VendorAnswer> {
      const test = answerForSandbox(what.lookupId, what.patience);
      if (test) return await settleFound(deps, what, test);
      return await withHeartbeat(Context.current(), async (signal) =>
        settleFound(deps, what, await verify(deps, what, signal)),
      );
    },
  };
}

/**
 * Makes the check of every address of the wanted type that a lookup named and that waits for one,
 * the most promising first; those that their finder does not call valid only until one satisfies. A
 * check that cannot be made now throws, so that the activity is tried again: a resolver's or a
 * verifier's bad moment is not held against an address.
 */
export async function verify(
  { db, check, rules, subjects }: Pick<VerifyDeps, 'db' | 'check' | 'rules' | 'subjects'>,
  { requestId, npi, lookupId, wantedType, patience, ...about }: ToVerify,
  signal: AbortSignal,
): Promise<VendorAnswer> {
  const { freshnessMs, greylistMs } = rules;
  const lookup = { npi, lookupId };
  const subject = about.subject ?? (await subjects.of(lookupId, npi, wantedType));
  const employer = subject.organization?.domain;
  const had: string[] = [];
  const unwanted: string[] = [];
  let satisfied = false;
  let later: string | null = null;
  let undecided: string | null = null;
  let notNow: ApplicationFailure | null = null;

  const write = async (email: string, decided: Decided) => {
    await recordCheck(db, { ...lookup, email }, decided.evidence, decided);
    const isWanted = wantedType === 'any' ? 'professional' : wantedType;
    satisfied ||= decided.verdict === 'valid' && decided.emailType === isWanted;
  };
  const letGo = async (email: string, { evidence }: Checked, greylistedMs: number | null) => {
    await recordCheck(db, { ...lookup, email }, evidence, null);
    await releaseUnchecked(db, { npi, email, requestId }, greylistedMs);
  };
  const judge = async (candidate: ClaimedEmail) => {
    const { email } = candidate;
    const checked = await check(candidate, subject, signal, requestId);
    switch (checked.kind) {
      case 'transient': {
        await letGo(email, checked, null);
        const isOurs = checked.reason.startsWith('verifier_') || checked.reason === 'dns_untrusted';
        if (!isOurs && candidate.waitedMs > DNS_PATIENCE_MS) undecided = checked.reason;
        else notNow = retryLater('verification', checked.reason, checked.afterMs);
        return;
      }
      case 'later':
        if (patience === 'over') return await write(email, checked.otherwise);
        await letGo(email, checked, greylistMs);
        later = checked.reason;
        return;
      case 'decided':
        return await write(email, checked);
      default:
        checked satisfies never;
    }
  };

  for (;;) {
    const greylisted = patience !== 'first';
    const claim = { ...lookup, requestId, except: had, greylisted, claimMs: CLAIM_MS };
    const candidate = await claimUnchecked(db, claim);
    if (candidate === null) break;
    const { email } = candidate;
    had.push(email);
    const type = classify(email.slice(email.lastIndexOf('@') + 1), candidate.vendorType, employer);
    const isWanted = wantedType === 'any' || type === wantedType;
    if (!isWanted) unwanted.push(email);
    if (!isWanted || (satisfied && candidate.verdict !== 'valid')) {
      await releaseUnchecked(db, { npi, email, requestId }, null);
      continue;
    }
    await judge(candidate).catch(async (error: unknown) => {
      await releaseUnchecked(db, { npi, email, requestId }, null);
      throw error;
    });
    if (satisfied && !candidate.hasRival) return { kind: 'found', reason: null };
  }
  const asked = { ...lookup, wantedType, freshnessMs, except: had };
  const { stored, elsewhere, greylisted } = await standingOf(db, asked);
  if (stored) return { kind: 'found', reason: null };
  // Before anything is tried again: a mail server that is asked too early starts its pause anew.
  if (later !== null || greylisted > 0) return { kind: 'later', reason: 'greylisted' };
  if (elsewhere > 0) throw retryLater('verification', 'checked_elsewhere', 1000);
  if (notNow !== null) throw notNow;
  if (undecided !== null) return { kind: 'fatal', reason: undecided };
  await recordRefused(db, lookupId, unwanted);
  return { kind: 'unusable', reason: 'none_valid' };
}
