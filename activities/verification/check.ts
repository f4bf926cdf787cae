import type { Evidence } from '../../db/lookups/checks.ts';
import { type EmailType, SERVICE } from '../../db/words.ts';
import type { Verdict } from '../vendors/vendor.ts';
import { consult } from './consult.ts';
import { isOwnerDoubtful } from './doubts.ts';
import { classify } from './email-type.ts';
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
import type { CheckedFor, Verifier, VerifierTrouble } from './verifiers/verifier.ts';

export interface Decided extends Ruling {
  readonly kind: 'decided';
  /** Null if the address does not belong to a person. */
  readonly emailType: EmailType | null;
  /** The normalized address. Addresses are stored, compared, and returned in this form. */
  readonly email: string;
  /** The results of the individual checks, in the order of the checks. */
  readonly evidence: readonly Evidence[];
}

/** The result of the checks of one candidate. */
export type Checked =
  | Decided
  /**
   * The mail server asked the verifier to retry later. Check again in about five minutes, or use
   * the result in `otherwise` if there is no time for that.
   */
  | {
      readonly kind: 'later';
      readonly reason: 'greylisted';
      readonly otherwise: Decided;
      readonly evidence: readonly Evidence[];
    }
  /**
   * There is no decision yet. Check again after `afterMs`. If `afterMs` is null, the caller chooses
   * the wait.
   */
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
  /**
   * The maximum age of a vendor's last check of a mailbox, in milliseconds. An older check is not
   * evidence.
   */
  readonly freshnessMs: number;
  /** The verifiers, in the order in which they are called. */
  readonly verifiers: readonly Verifier[];
  /**
   * Returns the time in milliseconds for the cache of mail domains; Date.now by default. Verdicts
   * are dated by PostgreSQL's clock instead.
   */
  readonly now?: () => number;
}

/**
 * Creates the check that every candidate must pass before it is returned to a client. It examines
 * the address itself, its owner, the vendor's claim, and the domain's DNS records. Last, it asks
 * the verifiers. A step runs only if it can still change the verdict under the policy (policy.ts).
 * A rate limit, an outage, or a temporary DNS failure never becomes a verdict. The check is then
 * `transient` and can be repeated.
 */
export function createCheck(options: CheckOptions) {
  const { resolver, dnsControl, policy, catchAll, freshnessMs, verifiers } = options;
  const { now = Date.now } = options;
  const mailRoute = createMailRoutes(resolver, dnsControl, now);

  /**
   * @param whose the person that the address should belong to
   * @throws the reason that `work.signal` was aborted with, and errors of `work.renewTurn`
   */
  return async (
    candidate: NamedCandidate,
    whose: Whose,
    work: CheckedFor,
  ): Promise<Checked> => {
    const started = performance.now();
    const owned = checkOwner(candidate, whose);
    if (owned.kind === 'refused') return refuse(owned, started);
    const { owner, address, emailType } = owned;
    const { domain, email } = address;

    const evidence: Evidence[] = [];
    const isDoubtful = isOwnerDoubtful(owner, candidate, address, whose);
    const claim = claimOf(candidate, isDoubtful, candidate.begunAt, freshnessMs);
    const agreed = catchAll === 'two-sources' && candidate.namedBy >= 2;
    const known = { policy, finder: claim.word, agreed };
    const decide = (word: Word | null, at = candidate.begunAt) =>
      decided({ email, emailType, evidence }, rule(known, claim, word, at));
    const unaided = decide(null);
    const isAsking = verifiers.length > 0 && verifierCanHelp(known);
    if (unaided.verdict !== 'valid' && !isAsking) return unaided;

    const route = await mailRoute(domain);
    if (route.kind === 'transient') return { ...route, evidence };
    if (route.kind === 'refuses') {
      const { reason } = route;
      return refuse({ email, emailType, verdict: 'invalid', reason }, started);
    }
    evidence.push(localEvidence('valid', 'local_checks', started));
    if (!isAsking) return unaided;
    const earlier = candidate.lastVerdict;
    // The cast is safe, because an earlier check recorded the result of `consult`.
    if (earlier !== null) return decide(earlier as Word, earlier.at);

    const { undecided } = candidate;
    const consulted = await consult(verifiers, { email, undecided }, work, evidence);
    switch (consulted.kind) {
      case 'word': {
        const ruled = decide(consulted);
        // A verifier that cannot be called now might later say that the address is valid. So the
        // check is not finished.
        if (ruled.verdict !== 'valid' && consulted.away) {
          return { ...consulted.away, evidence };
        }
        return ruled;
      }
      case 'greylisted': {
        const otherwise = decide({ verdict: 'unknown', reason: 'greylisted' });
        return { kind: 'later', reason: 'greylisted', otherwise, evidence };
      }
      case 'transient':
        return { ...consulted, evidence };
      default:
        return consulted satisfies never;
    }
  };
}

interface Refused extends Pick<Decided, 'email' | 'emailType'> {
  readonly verdict: Verdict;
  readonly reason: Reason;
}

/** Checks the address itself and its owner. */
function checkOwner(candidate: NamedCandidate, whose: Whose) {
  const looked = look(candidate.email, candidate.isTypedDirect, whose);
  if (looked.kind === 'refused') return { ...looked, emailType: null };
  const { address } = looked;
  const owner = ownerOf(address, whose);
  if (owner === 'shared' || owner === 'other_person') {
    return {
      kind: 'refused',
      email: address.email,
      emailType: null,
      verdict: 'risky',
      reason: owner,
    } as const;
  }
  const emailType = classify(address.domain, candidate.vendorType, whose);
  return { kind: 'owned', owner, address, emailType } as const;
}

function refuse(
  { email, emailType, verdict, reason }: Refused,
  started: number,
): Decided {
  const evidence = [localEvidence(verdict, reason, started)];
  return decided({ email, emailType, evidence }, { verdict, reason, validatedAt: null });
}

function localEvidence(verdict: Verdict, reason: Reason, started: number): Evidence {
  const durationMs = Math.round(performance.now() - started);
  return { kind: 'local', source: SERVICE, verdict, reason, durationMs };
}

function decided(
  about: Pick<Decided, 'email' | 'emailType' | 'evidence'>,
  ruling: Ruling,
): Decided {
  return { kind: 'decided', ...ruling, ...about };
}
