import type { Logger } from 'pino';
import type { Database } from '../../db/connection/client.ts';
import type { Evidence } from '../../db/lookups/checks.ts';
import {
  type Admission,
  admitCall,
  type RequiredVerifier,
  recordOne,
  type SourceLimits,
} from '../../db/lookups/sources.ts';
import { countCall } from '../../db/operations/metrics.ts';
import { logBreaker, outcomeOf } from '../failures.ts';
import { wordOf } from '../http/client.ts';
import { waitForSlot } from '../slots.ts';
import type { Vendor, Verdict } from '../vendors/vendor.ts';
import type { NamedCandidate, Policy } from './policy.ts';
import { doubtMissing } from './verifiers/suspect.ts';
import type {
  Asked,
  CheckedFor,
  createVerifier,
  MailboxReason,
  Unavailable,
  Verifier,
  VerifierStep,
  VerifierTrouble,
} from './verifiers/verifier.ts';

/**
 * No verifier can judge the address now. `afterMs` is null if we do not know when a verifier can be
 * called again.
 */
interface NotNow {
  readonly kind: 'transient';
  readonly reason: VerifierTrouble;
  readonly afterMs: number | null;
}

/**
 * The combined result of all verifiers.
 * - `word`: a verifier judged the address, or the verdict is `unknown` because no verifier could
 *   decide. If some verifiers could not be called, `away` has the shortest wait for one of them
 * - `greylisted`: no verifier judged, and the mail server asked one of them to retry
 * - `transient`: no verifier judged, and one that might judge could not respond now
 */
export type Consulted =
  | {
      readonly kind: 'word';
      readonly verdict: Verdict;
      readonly reason: MailboxReason | null;
      readonly away: NotNow | null;
    }
  | { readonly kind: 'greylisted' }
  | NotNow;

/** The contribution of one verifier to the combined result. */
type Contribution =
  | {
      readonly kind: 'judged';
      readonly verdict: Verdict;
      readonly reason: MailboxReason | null;
    }
  | { readonly kind: 'undecided'; readonly reason: MailboxReason }
  | { readonly kind: 'greylisted' }
  /** It was called, and may judge soon. */
  | { readonly kind: 'later'; readonly wait: NotNow }
  /** It could not be called, or rejects all our calls. */
  | { readonly kind: 'away'; readonly wait: NotNow };

/**
 * Calls verifiers in order until one judges the address. The next verifier is called if one cannot
 * decide or cannot be called. It is also called after greylisting, because the mail server may
 * already accept mail from this verifier's servers.
 * @param candidate.undecided verifiers that recently could not decide, with their reasons; they are
 * not called again, because they would cost credits again
 * @param evidence receives each verifier's result, or the reason for its missing result
 * @throws every error that a verifier's `check` throws, and those of `work.renewTurn`
 */
export async function consult(
  verifiers: readonly Verifier[],
  { email, undecided }: Pick<NamedCandidate, 'email' | 'undecided'>,
  work: CheckedFor,
  evidence: Evidence[],
): Promise<Consulted> {
  const contributions: Contribution[] = [];
  let isFirstCall = true;
  for (const verifier of verifiers) {
    const earlier = undecided[verifier.id];
    if (earlier !== undefined) {
      // The cast is safe, because the reason was recorded with the verifier's earlier response.
      contributions.push({ kind: 'undecided', reason: earlier as MailboxReason });
      continue;
    }
    // The turn of the first call began with the check of this address.
    if (!isFirstCall && work.renewTurn !== null && !(await work.renewTurn())) {
      // Another request calls this verifier now, so the check is repeated later.
      contributions.push({
        kind: 'later',
        wait: notNow('verifier_unavailable', null),
      });
      break;
    }
    isFirstCall = false;
    const step = await verifier.check(email, work);
    if (step.kind !== 'unavailable' && step.kind !== 'working') {
      evidence.push(evidenceOf(verifier.id, step));
    }
    const contribution = contributionOf(step);
    if (contribution.kind === 'judged') {
      const { verdict, reason } = contribution;
      return { kind: 'word', verdict, reason, away: null };
    }
    contributions.push(contribution);
  }
  return combine(contributions);
}

function contributionOf(step: Asked | Unavailable): Contribution {
  switch (step.kind) {
    case 'judgment': {
      const { verdict, reason } = step;
      if (verdict !== 'unknown') return { kind: 'judged', verdict, reason };
      return { kind: 'undecided', reason: reason ?? 'inconclusive' };
    }
    case 'greylisted':
      return { kind: 'greylisted' };
    case 'working':
      return { kind: 'later', wait: notNow('verifier_working', step.afterMs) };
    case 'retry':
      return { kind: 'later', wait: notNow(`verifier_${step.why}`, step.afterMs) };
    case 'unavailable':
      return { kind: 'away', wait: notNow(`verifier_${step.why}`, step.afterMs) };
    case 'fatal':
      return { kind: 'away', wait: notNow('verifier_unavailable', null) };
    default:
      return step satisfies never;
  }
}

function notNow(reason: VerifierTrouble, afterMs: number | null): NotNow {
  return { kind: 'transient', reason, afterMs };
}

/**
 * Combines the contributions of verifiers that did not judge. If one was greylisted and another is
 * rate limited, the result is `greylisted`. Otherwise the caller would soon retry, and a retry
 * during the mail server's pause starts the pause again.
 */
function combine(contributions: readonly Contribution[]): Consulted {
  if (contributions.some(({ kind }) => kind === 'greylisted')) {
    return { kind: 'greylisted' };
  }
  const later = soonest(contributions, 'later');
  if (later !== null) return later;
  const away = soonest(contributions, 'away');
  const undecided = contributions.find((one) => one.kind === 'undecided');
  if (undecided === undefined && away !== null) return away;
  return { kind: 'word', verdict: 'unknown', reason: undecided?.reason ?? null, away };
}

/** Returns the shortest wait of one kind, or null. A known wait is preferred to an unknown one. */
function soonest(
  contributions: readonly Contribution[],
  kind: 'later' | 'away',
): NotNow | null {
  const waits = contributions.flatMap((one) => (one.kind === kind ? [one.wait] : []));
  const lengthOf = ({ afterMs }: NotNow) => afterMs ?? Number.MAX_SAFE_INTEGER;
  const [first = null] = waits.toSorted((a, b) => lengthOf(a) - lengthOf(b));
  return first;
}

/** A verifier's response, or its error. */
type Finished = Exclude<Asked, { kind: 'working' }>;

function evidenceOf(source: string, step: Finished): Evidence {
  const { durationMs, waitedMs } = step;
  const verdict = step.kind === 'judgment' ? step.verdict : 'unknown';
  const reason = recordedReason(step);
  return { kind: 'verifier', source, verdict, reason, durationMs, waitedMs };
}

function recordedReason(step: Finished): string | null {
  switch (step.kind) {
    case 'judgment':
      return step.reason;
    case 'greylisted':
      return 'greylisted';
    case 'retry':
      return `verifier_${wordOf(step)}`;
    case 'fatal':
      return `verifier_${step.why}`;
  }
}

type LimitedVerifier = Verifier & Pick<SourceLimits, 'dailyCredits'>;

/**
 * The maximum time that a request waits for a slot under a verifier's rate limit. If the request
 * ends earlier, its slot becomes free.
 */
const PATIENCE_MS = 15 * 60_000;

/** A verifier with the limits of its calls. */
interface Source {
  readonly db: Database;
  readonly log: Logger;
  readonly verifier: ReturnType<typeof createVerifier>;
  readonly limits: SourceLimits;
}

/**
 * Adds the limits that all workers share to a verifier: its rate limits, its daily budget, and its
 * circuit breaker.
 */
export function limited(source: Source): LimitedVerifier {
  const { id, cost } = source.verifier;
  const { dailyCredits } = source.limits;
  return { id, cost, dailyCredits, check: (...call) => callIfAdmitted(source, ...call) };
}

async function callIfAdmitted(
  source: Source,
  email: string,
  work: CheckedFor,
): Promise<Asked | Unavailable> {
  const { db, verifier, limits } = source;
  const { id, cost } = verifier;
  const { requestId, signal } = work;
  const call = { source: id, limits, cost, requestId, patienceMs: PATIENCE_MS };
  const admission = await waitForSlot(id, () => admitCall(db, call), signal);
  switch (admission.kind) {
    case 'go':
      return await callAndRecord(source, email, work, admission);
    case 'wait': {
      const why = admission.why === 'rate_limit' ? 'rate_limit' : 'unavailable';
      return { kind: 'unavailable', why, afterMs: admission.afterMs };
    }
    case 'spent':
      return { kind: 'unavailable', why: 'unavailable', afterMs: null };
    default:
      return admission satisfies never;
  }
}

async function callAndRecord(
  { db, log, verifier }: Source,
  email: string,
  { requestId, signal }: CheckedFor,
  { at, era, waitedMs }: Extract<Admission, { kind: 'go' }>,
): Promise<Asked> {
  const { id, cost, isSelfHosted } = verifier;
  const started = performance.now();
  const checked = await countCall('verifier', id, verifier.check(email, signal));
  const durationMs = Math.round(performance.now() - started);
  const step = isSelfHosted ? await doubtMissing(db, log, id, checked) : checked;
  const unspent = { credits: isCharged(step) ? 0 : cost, askedAt: at, requestId };
  const outcome = outcomeOf(step);
  const change = await recordOne(db, id, era, outcome, unspent);
  logBreaker(log, id, change, outcome);
  return { ...step, durationMs, waitedMs };
}

/** Returns true if a call may be charged. That is also the case if its response was lost. */
function isCharged(step: VerifierStep): boolean {
  return step.kind === 'judgment' || (step.kind === 'retry' && step.why === 'unanswered');
}

/** An address that belongs to no one (RFC 2606). ZeroBounce's sandbox checks it for free. */
const NOBODY = 'invalid@example.com';

/**
 * Returns the verifiers that a vendor's address needs to become valid. While no required verifier
 * can be called, no vendor is paid.
 */
export function createRequiredVerifiers(
  policy: Policy,
  verifiers: readonly LimitedVerifier[],
) {
  const all: readonly RequiredVerifier[] = verifiers.map(({ id, cost, dailyCredits }) => {
    return { source: id, cost, dailyCredits };
  });
  return {
    /** Returns an empty list if the policy accepts the vendor's own claim. */
    of({ isDated }: Pick<Vendor, 'isDated'>): readonly RequiredVerifier[] {
      if (policy === 'vendor-or-verifier' && isDated) return [];
      return all;
    },
    /**
     * Asks the verifiers about an address that belongs to no one, each as soon as its breaker
     * allows a trial. While the breakers are open, no vendor is called, so no other address needs a
     * check. Without these trials, the breakers might never close.
     * @returns the milliseconds until the next try, or null if unknown
     */
    async tryAgain(signal: AbortSignal, requestId: string): Promise<number | null> {
      const nobody = { email: NOBODY, undecided: {} };
      const work = { signal, requestId, renewTurn: null };
      const consulted = await consult(verifiers, nobody, work, []);
      return consulted.kind === 'transient' ? consulted.afterMs : 0;
    },
  };
}
