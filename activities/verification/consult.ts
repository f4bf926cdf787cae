import type { Logger } from 'pino';
import type { Database } from '../../db/connection/client.ts';
import type { Evidence } from '../../db/lookups/checks.ts';
import {
  admitCall,
  type RequiredVerifier,
  recordOne,
  type SourceLimits,
} from '../../db/lookups/sources.ts';
import { countCall } from '../../db/operations/metrics.ts';
import { logBreaker, outcomeOf } from '../failures.ts';
import { wordOf } from '../http/client.ts';
import { waitForSlot } from '../slots.ts';
import type { Vendor } from '../vendors/vendor.ts';
import type { NamedCandidate, Policy } from './policy.ts';
import { doubtMissing } from './verifiers/suspect.ts';
import type {
  Asked,
  createVerifier,
  MailboxReason,
  Verifier,
  VerifierTrouble,
} from './verifiers/verifier.ts';

/**
 * No verifier can judge the address now. `afterMs` is null if we do not know when a verifier can be
 * called again.
 */
type NotNow = Readonly<{
  kind: 'transient';
  reason: VerifierTrouble;
  afterMs: number | null;
}>;

/**
 * Calls verifiers in order until one judges the address. The next verifier is called if one cannot
 * decide or cannot be called. It is also called after greylisting, because the mail server may
 * already accept mail from this verifier's servers. If one verifier was greylisted and another is
 * rate limited, the result is `greylisted`. Otherwise the caller would soon retry, and a retry
 * during the mail server's pause starts the pause again.
 * @param undecided verifiers that recently could not decide, with their reasons; they are not
 * called again, because they would cost credits again
 * @param evidence receives each verifier's result, or the reason for its missing result
 * @returns the combined result
 * - `word`: a verifier judged the address, or the verdict is `unknown` because no verifier could
 *   decide. If some verifiers could not be called, `away` has the shortest wait for one of them
 * - `greylisted`: no verifier judged, and the mail server asked one of them to retry
 * - `transient`: no verifier judged, and one that might judge could not respond now
 * @throws every error that a verifier's `check` throws
 */
export async function consult(
  verifiers: readonly Verifier[],
  request: Readonly<Parameters<Verifier['check']>>,
  undecided: NamedCandidate['undecided'],
  evidence: Evidence[],
) {
  let unknown: MailboxReason | null = null;
  let greylisted = false;
  let away: NotNow | null = null;
  let notNow: NotNow | null = null;

  for (const verifier of verifiers) {
    const earlier = undecided[verifier.id];
    if (earlier !== undefined) {
      // The cast is safe, because the reason was recorded with the verifier's earlier response.
      unknown ??= earlier as MailboxReason;
      continue;
    }
    const step = await verifier.check(...request);
    if (step.kind !== 'unavailable' && step.kind !== 'working') {
      evidence.push(evidenceOf(verifier.id, step));
    }
    switch (step.kind) {
      case 'unavailable':
        away = sooner(away, `verifier_${step.why}`, step.afterMs);
        break;
      case 'judgment': {
        const { verdict, reason } = step;
        if (verdict !== 'unknown') {
          return { kind: 'word', verdict, reason, away: null } as const;
        }
        unknown ??= reason ?? 'inconclusive';
        break;
      }
      case 'greylisted':
        greylisted = true;
        break;
      case 'working':
        notNow = sooner(notNow, 'verifier_working', step.afterMs);
        break;
      case 'retry':
        notNow = sooner(notNow, `verifier_${step.why}`, step.afterMs);
        break;
      case 'fatal':
        away = sooner(away, 'verifier_unavailable', null);
        break;
      default:
        step satisfies never;
    }
  }

  if (greylisted) return { kind: 'greylisted' } as const;
  if (notNow) return notNow;
  if (unknown === null && away !== null) return away;
  return { kind: 'word', verdict: 'unknown', reason: unknown, away } as const;
}

/** Returns the shorter of two waits for a verifier. A known wait is preferred to an unknown one. */
function sooner(
  known: NotNow | null,
  reason: VerifierTrouble,
  afterMs: number | null,
): NotNow {
  const other: NotNow = { kind: 'transient', reason, afterMs };
  if (known === null) return other;
  if (afterMs === null) return known;
  if (known.afterMs === null || afterMs < known.afterMs) return other;
  return known;
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

/**
 * Adds the limits that all workers share to a verifier: its rate limits, its daily budget, and its
 * circuit breaker.
 */
export function limited(
  db: Database,
  log: Logger,
  { id, cost, isSelfHosted, check }: ReturnType<typeof createVerifier>,
  limits: SourceLimits,
): LimitedVerifier {
  return {
    id,
    cost,
    dailyCredits: limits.dailyCredits,
    async check(email, signal, requestId) {
      const call = { source: id, limits, cost, requestId, patienceMs: PATIENCE_MS };
      const admission = await waitForSlot(id, () => admitCall(db, call), signal);
      if (admission.kind === 'spent') {
        return { kind: 'unavailable', why: 'unavailable', afterMs: null };
      }
      if (admission.kind === 'wait') {
        const why = admission.why === 'rate_limit' ? 'rate_limit' : 'unavailable';
        return { kind: 'unavailable', why, afterMs: admission.afterMs };
      }
      const started = performance.now();
      const checked = await countCall('verifier', id, check(email, signal));
      const durationMs = Math.round(performance.now() - started);
      const step = isSelfHosted ? await doubtMissing(db, log, id, checked) : checked;
      // A request may be charged even if its response was lost.
      const isCharged =
        step.kind === 'judgment' || (step.kind === 'retry' && step.why === 'unanswered');
      const credits = isCharged ? 0 : cost;
      const unspent = { credits, askedAt: admission.at, requestId };
      const outcome = outcomeOf(step);
      const change = await recordOne(db, id, admission.era, outcome, unspent);
      logBreaker(log, id, change, outcome);
      return { ...step, durationMs, waitedMs: admission.waitedMs };
    },
  };
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
      const consulted = await consult(verifiers, [NOBODY, signal, requestId], {}, []);
      if (consulted.kind === 'transient') return consulted.afterMs;
      return 0;
    },
  };
}
