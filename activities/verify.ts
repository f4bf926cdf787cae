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

type CheckDeps = Pick<VerifyDeps, 'db' | 'check' | 'rules' | 'subjects'>;

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
    async verifyEmails(lookup: ToVerify & RequestIds): Promise<VendorAnswer> {
      const test = answerForSandbox(lookup.lookupId, lookup.patience);
      if (test) return await settleFound(deps, lookup, test);
      return await withHeartbeat(Context.current(), async (signal) => {
        const answer = await verify(deps, lookup, signal);
        return await settleFound(deps, lookup, answer);
      });
    },
  };
}

/** The results of the checks of a lookup so far. */
interface Progress {
  /** All addresses that were claimed. */
  readonly claimed: string[];
  /** Claimed addresses of another type than the requested one. */
  readonly unwanted: string[];
  /** True once a valid address of the requested type was found. */
  satisfied: boolean;
  isLater: boolean;
  undecided: string | null;
  notNow: ApplicationFailure | null;
}

/**
 * Checks each waiting address of the requested type that a lookup named, most promising first.
 * Addresses that their vendor does not call valid are only checked until one address satisfies the
 * request. Throws if a check cannot be made now, so that the activity is retried: a short outage of
 * a resolver or a verifier does not count against an address.
 */
export async function verify(
  deps: CheckDeps,
  lookup: ToVerify,
  signal: AbortSignal,
): Promise<VendorAnswer> {
  const { db, subjects } = deps;
  const { requestId, npi, lookupId, wantedType } = lookup;
  const subject = lookup.subject ?? (await subjects.of(lookupId, npi, wantedType));
  const progress: Progress = {
    claimed: [],
    unwanted: [],
    satisfied: false,
    isLater: false,
    undecided: null,
    notNow: null,
  };
  for (;;) {
    const candidate = await claimUnchecked(db, {
      requestId,
      npi,
      lookupId,
      except: progress.claimed,
      greylisted: lookup.patience !== 'first',
      claimMs: CLAIM_MS,
    });
    if (candidate === null) return await conclude(deps, lookup, progress);
    const { email } = candidate;
    progress.claimed.push(email);
    const isRequested = isOfType(wantedType, candidate, subject);
    if (!isRequested) progress.unwanted.push(email);
    if (!isRequested || (progress.satisfied && candidate.verdict !== 'valid')) {
      await releaseUnchecked(db, { npi, email, requestId }, null);
      continue;
    }
    const toCheck = { lookup, candidate, subject };
    await checkOne(deps, toCheck, progress, signal).catch(async (error: unknown) => {
      await releaseUnchecked(db, { npi, email, requestId }, null);
      throw error;
    });
    if (progress.satisfied && !candidate.hasRival) return { kind: 'found', reason: null };
  }
}

function isOfType(
  wantedType: WantedType,
  { email, vendorType }: ClaimedEmail,
  { organization }: Subject,
): boolean {
  if (wantedType === 'any') return true;
  const domain = email.slice(email.lastIndexOf('@') + 1);
  return classify(domain, vendorType, organization?.domain) === wantedType;
}

interface ToCheck {
  readonly lookup: ToVerify;
  readonly candidate: ClaimedEmail;
  readonly subject: Subject;
}

/** Checks one claimed address, and adds the result to the progress. */
async function checkOne(
  deps: CheckDeps,
  { lookup, candidate, subject }: ToCheck,
  progress: Progress,
  signal: AbortSignal,
): Promise<void> {
  const { email, waitedMs } = candidate;
  const checked = await deps.check(candidate, subject, signal, lookup.requestId);
  if (checked.kind === 'decided')
    return await recordVerdict(deps, lookup, email, checked, progress);
  if (checked.kind === 'later') {
    if (lookup.patience === 'over') {
      return await recordVerdict(deps, lookup, email, checked.otherwise, progress);
    }
    await putBack(deps, lookup, email, checked, deps.rules.greylistMs);
    progress.isLater = true;
    return;
  }
  await putBack(deps, lookup, email, checked, null);
  const { reason, afterMs } = checked;
  const isOurs = reason.startsWith('verifier_') || reason === 'dns_untrusted';
  if (!isOurs && waitedMs > DNS_PATIENCE_MS) progress.undecided = reason;
  else progress.notNow = retryLater('verification', reason, afterMs);
}

async function recordVerdict(
  { db }: CheckDeps,
  { npi, lookupId, wantedType }: ToVerify,
  email: string,
  decided: Decided,
  progress: Progress,
): Promise<void> {
  await recordCheck(db, { npi, lookupId, email }, decided.evidence, decided);
  const satisfyingType = wantedType === 'any' ? 'professional' : wantedType;
  const satisfies = decided.verdict === 'valid' && decided.emailType === satisfyingType;
  if (satisfies) progress.satisfied = true;
}

/** Records the evidence of a check without a verdict, and releases the address. */
async function putBack(
  { db }: CheckDeps,
  { requestId, npi, lookupId }: ToVerify,
  email: string,
  { evidence }: Checked,
  greylistedMs: number | null,
): Promise<void> {
  await recordCheck(db, { npi, lookupId, email }, evidence, null);
  await releaseUnchecked(db, { npi, email, requestId }, greylistedMs);
}

/** Returns the result after all claimed addresses were checked, or throws to be retried. */
async function conclude(
  { db, rules }: CheckDeps,
  { npi, lookupId, wantedType }: ToVerify,
  { claimed, unwanted, isLater, undecided, notNow }: Progress,
): Promise<VendorAnswer> {
  const search = { npi, lookupId, wantedType, freshnessMs: rules.freshnessMs, except: claimed };
  const { stored, elsewhere, greylisted } = await standingOf(db, search);
  if (stored) return { kind: 'found', reason: null };
  // This comes before any retry. A mail server that is asked too early restarts its pause.
  if (isLater || greylisted > 0) return { kind: 'later', reason: 'greylisted' };
  if (elsewhere > 0) throw retryLater('verification', 'checked_elsewhere', 1000);
  if (notNow !== null) throw notNow;
  if (undecided !== null) return { kind: 'fatal', reason: undecided };
  await recordRefused(db, lookupId, unwanted);
  return { kind: 'unusable', reason: 'none_valid' };
}
