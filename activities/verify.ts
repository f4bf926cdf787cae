import { Context } from '@temporalio/activity';
import type { ApplicationFailure } from '@temporalio/common';
import {
  type CandidateToCheck,
  type NextCandidate,
  nextCandidate,
  recordUndecided,
  recordVerdict,
} from '../db/lookups/candidate-checks.ts';
import { joinLookup } from '../db/lookups/lookups.ts';
import {
  beginStep,
  CHECK_MS,
  inTurn,
  renewTurn,
  type Turn,
} from '../db/lookups/turns.ts';
import { recordRefused } from '../db/lookups/vendor-attempts.ts';
import { SHARED, waitForTurn } from '../db/lookups/vendor-steps.ts';
import type { RequestedType } from '../db/words.ts';
import type { VendorResult } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { retryLater } from './failures.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { Subjects } from './lookup.ts';
import { employerDomainsOf } from './person/subject.ts';
import { resultForSandbox } from './sandbox.ts';
import { type RequestIds, settleFound } from './settle.ts';
import type { Subject } from './vendors/vendor.ts';
import type { Decided } from './verification/check.ts';
import { classify } from './verification/email-type.ts';

/**
 * How greylisted addresses are handled.
 * - `first`: they are skipped during their pause.
 * - `early`: they are checked again before their pause has ended, because the deadline is near.
 * - `over`: they are checked after their pause, and the result is accepted even if the mail server
 *   greylists them again.
 */
type Patience = 'first' | 'early' | 'over';

interface ToVerify {
  readonly npi: string;
  readonly turn: Turn;
  readonly requestedType: RequestedType;
  readonly patience: Patience;
  /** The subject of the lookup, if the caller has already built it. */
  readonly subject?: Subject | undefined;
}

type VerifyInput = RequestIds &
  Pick<ToVerify, 'requestedType' | 'patience'> & { readonly lookupId: string };

type VerifyDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'check' | 'rules'> & {
  readonly subjects: Subjects;
};

type CheckDeps = Pick<VerifyDeps, 'db' | 'check' | 'rules' | 'subjects'>;

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
    async verifyEmails(lookup: VerifyInput): Promise<VendorResult> {
      const test = resultForSandbox(lookup.lookupId, lookup.patience);
      if (test) return await settleFound(deps, lookup, test);
      return await withHeartbeat(Context.current(), async (signal) => {
        const result = await takeTurn(deps, lookup, signal);
        return await settleFound(deps, lookup, result);
      });
    },
  };
}

/** Checks the addresses as soon as the request has the lookup's turn. */
async function takeTurn(
  deps: CheckDeps,
  lookup: VerifyInput,
  signal: AbortSignal,
): Promise<VendorResult> {
  const { db, rules } = deps;
  const { requestId, npi, requestedType, patience } = lookup;
  const { freshnessMs } = rules;
  const step = { requestId, vendor: null, turnMs: CHECK_MS, freshnessMs };
  const state = await beginStep(db, step);
  if (state.isSettled) return { kind: 'settled', reason: null };
  if (state.lookupId === null) {
    // PostgreSQL has lost the lookup, for example in a restore.
    await joinLookup(db, requestId);
    return await takeTurn(deps, lookup, signal);
  }
  if (state.refusal !== null) {
    return { kind: 'blocked', reason: state.refusal };
  }
  if (state.isStored) return { kind: 'stored', reason: null };
  const { turn } = state;
  if (turn === null) {
    const { why, afterMs } = waitForTurn(state);
    throw retryLater('verification', why, afterMs);
  }
  const toVerify = { npi, turn, requestedType, patience };
  return await inTurn(db, turn, () => verify(deps, toVerify, signal));
}

/** The result for an address in one run of `verify`. */
type Outcome = { readonly email: string } & (
  | { readonly kind: 'valid'; readonly isBest: boolean }
  | { readonly kind: 'rejected' }
  /** It does not have the requested type, so it was not checked. */
  | { readonly kind: 'unwanted' }
  | { readonly kind: 'greylisted' }
  /** Its check ended without a verdict and is not repeated. */
  | { readonly kind: 'undecided'; readonly reason: string }
  /** Its check must be repeated. */
  | { readonly kind: 'again'; readonly failure: ApplicationFailure }
);

/**
 * Checks the waiting addresses of a lookup that have the requested type, best first, until one
 * satisfies the request. The caller has the lookup's turn. If a name server or a verifier has a
 * short outage, throws a retryable failure, so that the outage does not count against an address.
 */
export async function verify(
  deps: CheckDeps,
  lookup: ToVerify,
  signal: AbortSignal,
): Promise<VendorResult> {
  const { db, subjects, rules } = deps;
  const { npi, turn, requestedType, patience } = lookup;
  const { lookupId } = turn;
  const subject = lookup.subject ?? (await subjects.of(lookupId, npi, requestedType));
  const outcomes: Outcome[] = [];
  for (;;) {
    const next = await nextCandidate(db, turn, {
      employerDomains: employerDomainsOf(subject),
      except: outcomes.map(({ email }) => email),
      isDeadline: patience === 'early',
      greylistMs: rules.greylistMs,
      turnMs: CHECK_MS,
      requestedType,
      freshnessMs: rules.freshnessMs,
    });
    if (next === null) throw turnLost();
    const { candidate } = next;
    if (candidate === null) {
      return await conclude(deps, lookupId, outcomes, next);
    }
    const { email } = candidate;
    if (isOfType(requestedType, candidate, subject)) {
      const outcome = await checkOne(deps, lookup, candidate, subject, signal);
      if (outcome.kind === 'valid' && outcome.isBest) return FOUND;
      outcomes.push(outcome);
    } else {
      outcomes.push({ email, kind: 'unwanted' });
    }
  }
}

/** Returns the failure of a worker that was so slow that another one has taken the turn. */
function turnLost(): ApplicationFailure {
  return retryLater('verification', SHARED, null);
}

const FOUND: VendorResult = { kind: 'found', reason: null };

function isOfType(
  requestedType: RequestedType,
  { email, vendorType }: CandidateToCheck,
  subject: Subject,
): boolean {
  if (requestedType === 'any') return true;
  const domain = email.slice(email.lastIndexOf('@') + 1);
  return classify(domain, vendorType, subject) === requestedType;
}

/** Checks one address, and records the result. */
async function checkOne(
  deps: CheckDeps,
  { turn, requestedType, patience }: ToVerify,
  candidate: CandidateToCheck,
  subject: Subject,
  signal: AbortSignal,
): Promise<Outcome> {
  const { db, rules } = deps;
  const { email, waitedMs } = candidate;
  const id = { lookupId: turn.lookupId, email };
  const work = {
    signal,
    requestId: turn.requestId,
    renewTurn: () => renewTurn(db, turn),
  };
  const checked = await deps.check(candidate, subject, work);
  const decide = async (decided: Decided): Promise<Outcome> => {
    await recordVerdict(db, id, decided.evidence, decided);
    if (decided.verdict !== 'valid') return { email, kind: 'rejected' };
    const best = requestedType === 'any' ? 'professional' : requestedType;
    return { email, kind: 'valid', isBest: decided.emailType === best };
  };
  if (checked.kind === 'decided') return await decide(checked);
  if (checked.kind === 'later') {
    if (patience === 'over') return await decide(checked.otherwise);
    await recordUndecided(db, id, checked.evidence, rules.greylistMs);
    return { email, kind: 'greylisted' };
  }
  await recordUndecided(db, id, checked.evidence, null);
  const { reason, afterMs } = checked;
  const isOurs = reason.startsWith('verifier_') || reason === 'dns_untrusted';
  if (!isOurs && waitedMs > DNS_PATIENCE_MS) {
    return { email, kind: 'undecided', reason };
  }
  return { email, kind: 'again', failure: retryLater('verification', reason, afterMs) };
}

/**
 * Returns the result after all addresses were handled. Throws a retryable failure if an address has
 * to be checked again.
 * @param last the state of the lookup after the last check
 */
async function conclude(
  { db }: CheckDeps,
  lookupId: string,
  outcomes: readonly Outcome[],
  { areLater, isFound }: NextCandidate,
): Promise<VendorResult> {
  if (isFound) return FOUND;
  // This comes before the retryable failure below, because the retry would check greylisted
  // addresses too early. A mail server that gets a check too early may start its pause again.
  if (areLater || outcomes.some(({ kind }) => kind === 'greylisted')) {
    return { kind: 'later', reason: 'greylisted' };
  }
  const again = outcomes.findLast((outcome) => outcome.kind === 'again');
  if (again) throw again.failure;
  const undecided = outcomes.findLast((outcome) => outcome.kind === 'undecided');
  if (undecided) return { kind: 'fatal', reason: undecided.reason };
  const unwanted = outcomes.filter(({ kind }) => kind === 'unwanted');
  await recordRefused(
    db,
    lookupId,
    unwanted.map(({ email }) => email),
  );
  return { kind: 'unusable', reason: 'none_valid' };
}
