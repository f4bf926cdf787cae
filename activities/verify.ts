import { Context } from '@temporalio/activity';
import type { ApplicationFailure } from '@temporalio/common';
import { recordCheck } from '../db/lookups/checks.ts';
import {
  type ClaimedEmail,
  claimUnchecked,
  releaseUnchecked,
  standingOf,
} from '../db/lookups/claims.ts';
import { recordRefused } from '../db/lookups/vendor-attempts.ts';
import type { RequestedType } from '../db/words.ts';
import type { VendorAnswer } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { retryLater } from './failures.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { Subjects } from './lookup.ts';
import { employerDomainsOf } from './person/subject.ts';
import { answerForSandbox } from './sandbox.ts';
import { type RequestIds, settleFound } from './settle.ts';
import type { Subject } from './vendors/vendor.ts';
import type { Checked, Decided } from './verification/check.ts';
import { classify } from './verification/email-type.ts';

interface ToVerify {
  readonly requestId: string;
  readonly npi: string;
  readonly lookupId: string;
  readonly requestedType: RequestedType;
  /**
   * How greylisted addresses are handled.
   * - `first`: they are skipped.
   * - `early`: they are checked again before their pause has ended, because the deadline is near.
   * - `over`: they are checked after their pause, and the result is accepted even if the mail
   *   server greylists them again.
   */
  readonly patience: 'first' | 'early' | 'over';
  /** The subject of the lookup, if the caller has already built it. */
  readonly subject?: Subject;
}

type VerifyDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'check' | 'rules'> & {
  readonly subjects: Subjects;
};

type CheckDeps = Pick<VerifyDeps, 'db' | 'check' | 'rules' | 'subjects'>;

/**
 * If a worker claimed an address longer ago than this and has not released it, we assume that the
 * worker has died. A check normally takes less time, because each verifier responds within 90 s.
 */
const CLAIM_MS = 120_000;
/**
 * If a name server still does not respond this long after the lookup learned of an address, we stop
 * waiting for it.
 */
const DNS_PATIENCE_MS = 30_000;

/** Returns the activity that checks addresses without calling a vendor. */
export function createVerifyActivities(deps: VerifyDeps) {
  return {
    /**
     * Checks addresses of an NPI that are already known or that were greylisted. Settles the
     * request if one of them is valid.
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

/** The results so far of one run of `verify`. */
interface Progress {
  /** All addresses that this run has claimed. */
  readonly claimed: string[];
  /** The claimed addresses that do not have the requested type. */
  readonly unwanted: string[];
  /** True once a valid address of the requested type was found. */
  satisfied: boolean;
  /** True if a mail server greylisted an address. */
  isLater: boolean;
  /** The reason why a check ended without a verdict and is not repeated. */
  undecided: string | null;
  /** The failure to throw if a check must be repeated. */
  notNow: ApplicationFailure | null;
}

/**
 * Checks the unchecked addresses of a lookup that have the requested type, best first, until one
 * satisfies the request. If a name server or a verifier has a short outage, throws a retryable
 * failure, so that the outage does not count against an address.
 */
export async function verify(
  deps: CheckDeps,
  lookup: ToVerify,
  signal: AbortSignal,
): Promise<VendorAnswer> {
  const { db, subjects } = deps;
  const { requestId, npi, lookupId, requestedType } = lookup;
  const subject = lookup.subject ?? (await subjects.of(lookupId, npi, requestedType));
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
      employerDomains: employerDomainsOf(subject),
      except: progress.claimed,
      greylisted: lookup.patience !== 'first',
      claimMs: CLAIM_MS,
    });
    if (candidate === null) return await conclude(deps, lookup, progress);
    const { email } = candidate;
    progress.claimed.push(email);
    const isRequested = isOfType(requestedType, candidate, subject);
    if (!isRequested) progress.unwanted.push(email);
    if (!isRequested) {
      await releaseUnchecked(db, { npi, email, requestId }, null);
      continue;
    }
    const toCheck = { lookup, candidate, subject };
    await checkOne(deps, toCheck, progress, signal).catch(async (error: unknown) => {
      await releaseUnchecked(db, { npi, email, requestId }, null);
      throw error;
    });
    if (progress.satisfied) return { kind: 'found', reason: null };
  }
}

function isOfType(
  requestedType: RequestedType,
  { email, vendorType }: ClaimedEmail,
  subject: Subject,
): boolean {
  if (requestedType === 'any') return true;
  const domain = email.slice(email.lastIndexOf('@') + 1);
  return classify(domain, vendorType, subject) === requestedType;
}

interface ToCheck {
  readonly lookup: ToVerify;
  readonly candidate: ClaimedEmail;
  readonly subject: Subject;
}

/** Checks one claimed address, and records the result in `progress`. */
async function checkOne(
  deps: CheckDeps,
  { lookup, candidate, subject }: ToCheck,
  progress: Progress,
  signal: AbortSignal,
): Promise<void> {
  const { email, waitedMs } = candidate;
  const checked = await deps.check(candidate, subject, signal, lookup.requestId);
  if (checked.kind === 'decided') {
    return await recordVerdict(deps, lookup, email, checked, progress);
  }
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
  { npi, lookupId, requestedType }: ToVerify,
  email: string,
  decided: Decided,
  progress: Progress,
): Promise<void> {
  await recordCheck(db, { npi, lookupId, email }, decided.evidence, decided);
  const satisfyingType = requestedType === 'any' ? 'professional' : requestedType;
  const satisfies = decided.verdict === 'valid' && decided.emailType === satisfyingType;
  if (satisfies) progress.satisfied = true;
}

/**
 * Records the evidence of a check that ended without a verdict, and releases the address for other
 * lookups.
 */
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

/**
 * Returns the result after all claimed addresses were checked. Throws a retryable failure if an
 * address has to be checked later.
 */
async function conclude(
  { db, rules }: CheckDeps,
  { npi, lookupId, requestedType }: ToVerify,
  { claimed, unwanted, isLater, undecided, notNow }: Progress,
): Promise<VendorAnswer> {
  const search = {
    npi,
    lookupId,
    requestedType,
    freshnessMs: rules.freshnessMs,
    except: claimed,
  };
  const { stored, elsewhere, greylisted } = await standingOf(db, search);
  if (stored) return { kind: 'found', reason: null };
  // This comes before the retryable failures below, because a retry would check greylisted
  // addresses too early. A mail server that gets a check too early may start its pause again.
  if (isLater || greylisted > 0) return { kind: 'later', reason: 'greylisted' };
  if (elsewhere > 0) throw retryLater('verification', 'checked_elsewhere', 1000);
  if (notNow !== null) throw notNow;
  if (undecided !== null) return { kind: 'fatal', reason: undecided };
  await recordRefused(db, lookupId, unwanted);
  return { kind: 'unusable', reason: 'none_valid' };
}
