import type { Logger } from 'pino';
import type { Database } from '../../db/client.ts';
import type { Evidence } from '../../db/lookups/candidates.ts';
import {
  admitCall,
  type RequiredVerifier,
  recordOne,
  type SourceLimits,
} from '../../db/lookups/sources.ts';
import { countCall } from '../../db/metrics.ts';
import { logBreaker, outcomeOf } from '../failures.ts';
import { wordOf } from '../http/client.ts';
import { waitForSlot } from '../slots.ts';
import type { Vendor, Verdict } from '../vendors/vendor.ts';
import type { NamedCandidate, Policy, Reason } from './policy.ts';
import type {
  createVerifier,
  MailboxReason,
  Verifier,
  VerifierTrouble,
} from './verifiers/verifier.ts';

/** No judgment for now; null if nobody can say when one of them may be asked again. */
type NotNow = Readonly<{ kind: 'transient'; reason: VerifierTrouble; afterMs: number | null }>;

/**
 * Asks verifiers in order until one judges. The next is asked if one cannot tell or cannot be
 * asked, and after greylisting too: another verifier's servers may be known to the mail server
 * already. Greylisting outweighs a rate limit, because whoever comes back before the mail server's
 * pause is over starts it again.
 * @param toldNothing verifiers that could not tell a while ago, and why: they are not asked, and
 * paid, again
 * @param evidence is added to: what each verifier made of the address, or why it made nothing of it
 * @returns what they together have to say
 * - `word`: one of them judged. `unknown` if those that answered could not tell; then `away` are
 *   those that may not be asked and might have
 * - `greylisted`: none judged, and the mail server asked one of them to come back
 * - `transient`: none judged, and one that might have was not able to answer now
 * @throws whatever `check` of one does
 */
export async function consult(
  verifiers: readonly Verifier[],
  question: Parameters<Verifier['check']>,
  toldNothing: NamedCandidate['toldNothing'],
  evidence: Evidence[],
) {
  let unknown: MailboxReason | null = null;
  let greylisted = false;
  let away: NotNow | null = null;
  let notNow: NotNow | null = null;

  for (const verifier of verifiers) {
    const earlier = toldNothing[verifier.id];
    if (earlier !== undefined) {
      // It is what was noted of its answer.
      unknown ??= earlier as MailboxReason;
      continue;
    }
    const step = await verifier.check(...question);
    if (step.kind === 'unavailable') {
      away = sooner(away, `verifier_${step.why}`, step.afterMs);
      continue;
    }
    const { durationMs, waitedMs } = step;
    const told = (verdict: Verdict, reason: Reason | `verifier_${string}` | null) =>
      evidence.push({
        kind: 'verifier',
        source: verifier.id,
        verdict,
        reason,
        durationMs,
        waitedMs,
      });
    switch (step.kind) {
      case 'answer': {
        const { verdict, reason } = step;
        told(verdict, reason);
        if (verdict !== 'unknown') return { kind: 'word', verdict, reason, away: null } as const;
        unknown ??= reason ?? 'inconclusive';
        break;
      }
      case 'greylisted':
        told('unknown', 'greylisted');
        greylisted = true;
        break;
      case 'working':
        notNow = sooner(notNow, 'verifier_working', step.afterMs);
        break;
      case 'retry':
        told('unknown', `verifier_${step.why === 'unsent' ? wordOf(step) : step.why}`);
        notNow = sooner(notNow, `verifier_${step.why}`, step.afterMs);
        break;
      case 'fatal':
        told('unknown', `verifier_${step.why}`);
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

/** The one that may be asked again first; a known time before none. */
function sooner(known: NotNow | null, reason: VerifierTrouble, afterMs: number | null): NotNow {
  const isSooner = afterMs !== null && (known?.afterMs ?? Number.POSITIVE_INFINITY) > afterMs;
  return known === null || isSooner ? { kind: 'transient', reason, afterMs } : known;
}

/**
 * A verifier that is asked within the limits that hold across all workers: rate, budget, circuit
 * breaker.
 */
export function limited(
  db: Database,
  log: Logger,
  { id, cost, check }: ReturnType<typeof createVerifier>,
  limits: SourceLimits,
): LimitedVerifier {
  return {
    id,
    cost,
    dailyCredits: limits.dailyCredits,
    async check(email, signal, requestId) {
      const call = { source: id, limits, cost, requestId, patienceMs: PATIENCE_MS };
      const admission = await waitForSlot(id, () => admitCall(db, call), signal);
      if (admission.kind === 'spent')
        return { kind: 'unavailable', why: 'unavailable', afterMs: null };
      if (admission.kind === 'wait') {
        const why = admission.why === 'rate_limit' ? 'rate_limit' : 'unavailable';
        return { kind: 'unavailable', why, afterMs: admission.afterMs };
      }
      const started = performance.now();
      const step = await countCall('verifier', id, check(email, signal));
      const durationMs = Math.round(performance.now() - started);
      // A call that was sent and not answered may be charged.
      const isCharged =
        step.kind === 'answer' || (step.kind === 'retry' && step.why === 'unanswered');
      const unspent = { credits: isCharged ? 0 : cost, askedAt: admission.at, requestId };
      const outcome = outcomeOf(step);
      logBreaker(log, id, await recordOne(db, id, admission.era, outcome, unspent), outcome);
      return { ...step, durationMs, waitedMs: admission.waitedMs };
    },
  };
}

type LimitedVerifier = Verifier & Pick<SourceLimits, 'dailyCredits'>;

/** No request waits for longer. A request that ends gives back its slot. */
const PATIENCE_MS = 15 * 60_000;
/** Nobody's mailbox (RFC 2606); the sandbox of ZeroBounce answers about it at no cost. */
const NOBODY = 'invalid@example.com';

/**
 * The verifiers without which an address that a vendor names could not become valid. While none of
 * them can be called, no vendor is paid.
 */
export function createRequiredVerifiers(policy: Policy, verifiers: readonly LimitedVerifier[]) {
  const all = verifiers.map(
    ({ id, cost, dailyCredits }): RequiredVerifier => ({ source: id, cost, dailyCredits }),
  );
  return {
    /** Returns none if the policy may take the vendor's own word. */
    of: ({ isDated }: Pick<Vendor, 'isDated'>) =>
      policy === 'vendor-or-verifier' && isDated ? [] : all,
    /**
     * Asks the verifiers about an address without an owner, each as soon as its breaker allows a
     * trial. Without this, no call might close their breakers.
     * @returns in how many milliseconds to ask again; null if that is not known
     */
    async tryAgain(signal: AbortSignal, requestId: string): Promise<number | null> {
      const consulted = await consult(verifiers, [NOBODY, signal, requestId], {}, []);
      return consulted.kind === 'transient' ? consulted.afterMs : 0;
    },
  };
}
