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
  /** Null if the address does not belong to a person. */
  readonly emailType: EmailType | null;
  /** The normalized address. Stored, compared, and returned in this form. */
  readonly email: string;
  /** The results of the single checks, in the order of the checks. */
  readonly evidence: readonly Evidence[];
}

/** The result of the checks of one candidate. */
export type Checked =
  | Decided
  /** The mail server asked to retry. Check again in about five minutes, or use `otherwise`. */
  | {
      readonly kind: 'later';
      readonly reason: 'greylisted';
      readonly otherwise: Decided;
      readonly evidence: readonly Evidence[];
    }
  /** No decision. Check again after `afterMs`; if it is null, the caller picks the pause. */
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
  /** The age in milliseconds up to which a validation counts. */
  readonly freshnessMs: number;
  /** Verifiers in call order. */
  readonly verifiers: readonly Verifier[];
  /**
   * The clock of the cache of domains, in milliseconds; Date.now by default. Verdicts carry
   * PostgreSQL's time.
   */
  readonly now?: () => number;
}

/**
 * Creates the check that every candidate must pass before it is returned to a client. It looks at
 * the address itself, its owner, the vendor's claim, the domain's name servers, and then asks the
 * verifiers. A step runs only if it can still change the verdict under the policy (policy.ts). A
 * rate limit, an outage, or a temporary DNS failure never becomes a verdict. The check is then
 * `transient` and can be repeated. It throws only the reason that `signal` was aborted with.
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
   * @param whose the person that the address should belong to
   * @param requestId the request that the check is made for, or null
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
    // `consult` recorded the reason in the earlier check.
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
        // A verifier that cannot be called now might still call the address valid. So this is not
        // "nothing found" yet.
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
