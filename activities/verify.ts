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
   * The handling of greylisted addresses. `first` skips them. `early` checks them again because no
   * time is left. `over` checks them after their pause and accepts the result.
   */
  readonly patience: 'first' | 'early' | 'over';
  /** The person of the lookup, if already built. */
  readonly subject?: Subject;
}

type VerifyDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'check' | 'rules'> & {
  readonly subjects: Subjects;
};

/**
 * Verifiers run one after the other, each for up to 90 s. An older claim belongs to a dead worker.
 */
const CLAIM_MS = 120_000;
/** A name server that has not responded for this long has more than a short outage. */
const DNS_PATIENCE_MS = 30_000;

/** Returns the activity that checks addresses without calling a vendor again. */
export function createVerifyActivities(deps: VerifyDeps) {
  return {
    /**
     * Checks addresses of an NPI that are already known or that were greylisted. Settles the
     * request if one passes.
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
 * Checks each waiting address of the requested type that a lookup named, most promising first.
 * Addresses that their vendor does not call valid are only checked until one address satisfies the
 * request. Throws if a check cannot be made now, so that the activity is retried: a short outage of
 * a resolver or a verifier does not count against an address.
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
  // This comes before any retry. A mail server that is asked too early restarts its pause.
  if (later !== null || greylisted > 0) return { kind: 'later', reason: 'greylisted' };
  if (elsewhere > 0) throw retryLater('verification', 'checked_elsewhere', 1000);
  if (notNow !== null) throw notNow;
  if (undecided !== null) return { kind: 'fatal', reason: undecided };
  await recordRefused(db, lookupId, unwanted);
  return { kind: 'unusable', reason: 'none_valid' };
}
