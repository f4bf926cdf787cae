import type { Evidence } from '../../db/lookups/candidates.ts';
import { type EmailType, SERVICE } from '../../db/words.ts';
import type { Verdict } from '../vendors/vendor.ts';
import { consult } from './consult.ts';
import { classify } from './domains.ts';
import { ownerOf, type Whose } from './local-part.ts';
import { look } from './looks.ts';
import { createMailRoutes, type DnsControl, type MailResolver } from './mx.ts';
import {
  type CatchAllPolicy,
  claimOf,
  type NamedCandidate,
  type Policy,
  type Reason,
  type Ruling,
  rule,
  verifierCanHelp,
  type Word,
} from './policy.ts';
import type { Verifier, VerifierTrouble } from './verifiers/verifier.ts';

export interface Decided extends Ruling {
  readonly kind: 'decided';
  /** Null if the address isn't a person's own. */
  readonly emailType: EmailType | null;
  /** Normalized: the form to store, compare and hand out. */
  readonly email: string;
  /** What was found on the way, in that order. */
  readonly evidence: readonly Evidence[];
}

/** What the checks make of a candidate. */
export type Checked =
  | Decided
  /**
   * The mail server asked to come back: check again in about five minutes, or settle for
   * `otherwise`.
   */
  | {
      readonly kind: 'later';
      readonly reason: 'greylisted';
      readonly otherwise: Decided;
      readonly evidence: readonly Evidence[];
    }
  /** Nothing is decided: check again after `afterMs`, or after a pause of the caller's choice. */
  | {
      readonly kind: 'transient';
      readonly reason: 'timeout' | 'dns_failure' | 'dns_untrusted' | VerifierTrouble;
      readonly afterMs: number | null;
      readonly evidence: readonly Evidence[];
    };

export interface CheckOptions {
  readonly resolver: MailResolver;
  readonly dnsControl: DnsControl;
  readonly policy: Policy;
  readonly catchAll: CatchAllPolicy;
  /** How long a validation is good for: what is served for an email must be younger. */
  readonly freshnessMs: number;
  /** In the order in which they are asked. */
  readonly verifiers: readonly Verifier[];
  /**
   * For what is remembered of domains, in milliseconds; the clock by default. Verdicts are dated by
   * PostgreSQL's.
   */
  readonly now?: () => number;
}

/**
 * The gate every candidate passes before it may be given to a client: its looks, whose it is, then
 * what its finder says, then its domain's name servers, then verifiers; each is asked only if its
 * answer can still change the verdict, as policy.ts has it. A rate limit, an outage or a resolver's
 * bad moment never becomes a verdict: the check is then `transient` and may be repeated. It throws
 * only what aborting `signal` throws.
 */
export function createCheck(options: CheckOptions) {
  const {
    resolver,
    dnsControl,
    policy,
    catchAll,
    freshnessMs,
    verifiers,
    now = Date.now,
  } = options;
  const mailRoute = createMailRoutes(resolver, dnsControl, now);

  /**
   * @param whose whose it should be
   * @param requestId for which it is made; null if for none
   */
  return async (
    candidate: NamedCandidate,
    whose: Whose,
    signal: AbortSignal,
    requestId: string | null,
  ): Promise<Checked> => {
    const started = performance.now();
    const evidence: Evidence[] = [];
    const noteOurs = (verdict: Verdict, reason: Reason) => {
      const durationMs = Math.round(performance.now() - started);
      evidence.push({ kind: 'local', source: SERVICE, verdict, reason, durationMs });
    };
    const refuse = (
      email: string,
      emailType: EmailType | null,
      verdict: Verdict,
      reason: Reason,
    ) => {
      noteOurs(verdict, reason);
      return decided({ email, emailType, evidence }, { verdict, reason, validatedAt: null });
    };

    const looked = look(candidate.email, candidate.isTypedDirect, whose.person);
    if (looked.kind === 'refused') return refuse(looked.email, null, looked.verdict, looked.reason);
    const { email, domain } = looked.address;
    const owner = ownerOf(looked.address, whose);
    if (owner === 'shared' || owner === 'other_person') return refuse(email, null, 'risky', owner);
    const emailType = classify(domain, candidate.vendorType, whose.organization?.domain);
    const about = { email, emailType, evidence };
    const claim = claimOf(candidate, owner, candidate.takenAt, freshnessMs);
    const agreed = catchAll === 'two-sources' && candidate.namedBy >= 2;
    const known = { policy, finder: claim.word, agreed };
    const unaided = decided(about, rule(known, claim, null, candidate.takenAt));
    const asking = verifiers.length > 0 && verifierCanHelp(known);
    if (unaided.verdict !== 'valid' && !asking) return unaided;

    const route = await mailRoute(domain);
    if (route.kind === 'transient') return { ...route, evidence };
    if (route.kind === 'refuses') return refuse(email, emailType, 'invalid', route.reason);
    noteOurs('valid', 'local_checks');
    if (!asking) return unaided;
    const withWord = (word: Word, at = candidate.takenAt) =>
      decided(about, rule(known, claim, word, at));
    const earlier = candidate.looked;
    // Its reason is what `consult` noted then.
    if (earlier !== null) return withWord(earlier as Word, earlier.at);

    const consulted = await consult(
      verifiers,
      [email, signal, requestId],
      candidate.toldNothing,
      evidence,
    );
    switch (consulted.kind) {
      case 'word': {
        const ruled = withWord(consulted);
        // Who may not be asked might have made it valid: no ground to say "nothing found".
        return ruled.verdict === 'valid' || consulted.away === null
          ? ruled
          : { ...consulted.away, evidence };
      }
      case 'greylisted': {
        const otherwise = withWord({ verdict: 'unknown', reason: 'greylisted' });
        return { kind: 'later', reason: 'greylisted', otherwise, evidence };
      }
      case 'transient':
        return { ...consulted, evidence };
      default:
        return consulted satisfies never;
    }
  };
}

function decided(
  about: Pick<Decided, 'email' | 'emailType' | 'evidence'>,
  ruling: Ruling,
): Decided {
  return { kind: 'decided', ...ruling, ...about };
}
