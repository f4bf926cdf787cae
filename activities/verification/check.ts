import type { EmailType } from '../../db/words.ts';
import type { Candidate, Verdict } from '../providers/port.ts';
import { classify } from './classify.ts';
import { isDirect } from './direct.ts';
import { isDisposable } from './disposable.ts';
import { registrableDomain } from './domain.ts';
import { createMailRoutes, type MailResolver } from './mx.ts';
import type { Reason } from './reasons.ts';
import { isRelay } from './relay.ts';
import { isRole } from './role.ts';
import { type Address, parseAddress } from './syntax.ts';

/** What our own checks make of a candidate. */
export type Checked =
  | {
      readonly kind: 'decided';
      readonly verdict: Verdict;
      /** Null where the address is none of a person's own. */
      readonly emailType: EmailType | null;
      /** Null where the verdict says it all: the vendor's `catch_all` and `risky`. */
      readonly reason: Reason | null;
      /** When the mailbox was last seen to answer, if it was. */
      readonly validatedAt: Date | null;
      /** Normalised: the form to store, compare and hand out. */
      readonly email: string;
    }
  | { readonly kind: 'transient'; readonly reason: 'timeout' | 'dns_failure' };

type Decided = Extract<Checked, { kind: 'decided' }>;
type Finding = Pick<Decided, 'verdict' | 'reason'>;

const DAY_MS = 86_400_000;
const FRESH_MS = 30 * DAY_MS;

export interface CheckOptions {
  readonly resolver: MailResolver;
  /** Milliseconds; the clock by default. */
  readonly now?: () => number;
}

/**
 * The gate every candidate passes. `valid` needs all of our own checks and the vendor's word that the mailbox
 * answered within the last 30 days; anything less is never given to a client. The domain's name servers are asked
 * last, and only where their answer can still change the verdict. The check never throws: where name servers do
 * not answer it is `transient`, and the same candidate may be checked again.
 */
export function createCheck({
  resolver,
  now = Date.now,
}: CheckOptions): (candidate: Candidate) => Promise<Checked> {
  const mailRoute = createMailRoutes(resolver, now);

  return async (candidate) => {
    const address = parseAddress(candidate.email);
    if (address === null) {
      return decided(candidate.email.trim().toLowerCase(), null, null, {
        verdict: 'invalid',
        reason: 'syntax',
      });
    }
    const refusal = refuse(address);
    if (refusal) return decided(address.email, null, null, refusal);

    const emailType = classify(address.domain, candidate.vendorType);
    const validatedAt = evidenceOf(candidate, now());
    const finding = weigh(candidate.verdict, validatedAt, now());
    if (finding.verdict !== 'valid') return decided(address.email, emailType, validatedAt, finding);

    const route = await mailRoute(address.domain);
    if (route.kind === 'transient') return route;
    if (route.kind === 'refuses') {
      return decided(address.email, emailType, null, { verdict: 'invalid', reason: route.reason });
    }
    return decided(address.email, emailType, validatedAt, finding);
  };
}

/** Addresses that are not a person's own mailbox, in the order in which one reason hides another. */
function refuse({ local, domain }: Address): Finding | null {
  if (registrableDomain(domain) === null) return { verdict: 'invalid', reason: 'no_suffix' };
  if (isDisposable(domain)) return { verdict: 'invalid', reason: 'disposable' };
  if (isRelay(domain)) return { verdict: 'risky', reason: 'relay' };
  if (isRole(local)) return { verdict: 'risky', reason: 'role' };
  if (isDirect(domain)) return { verdict: 'invalid', reason: 'direct' };
  return null;
}

/** When the vendor saw the mailbox answer. A date a day or more ahead of our clock is no date. */
function evidenceOf({ verdict, validatedAt }: Candidate, now: number): Date | null {
  if (verdict !== 'valid' || validatedAt === null) return null;
  const time = validatedAt.getTime();
  return Number.isNaN(time) || time - now >= DAY_MS ? null : new Date(Math.min(time, now));
}

function weigh(verdict: Verdict, validatedAt: Date | null, now: number): Finding {
  if (verdict === 'invalid') return { verdict, reason: 'mailbox_missing' };
  if (verdict === 'catch_all' || verdict === 'risky') return { verdict, reason: null };
  if (verdict === 'unknown' || validatedAt === null) return { verdict: 'unknown', reason: 'no_evidence' };
  if (now - validatedAt.getTime() > FRESH_MS) return { verdict: 'unknown', reason: 'stale_evidence' };
  return { verdict: 'valid', reason: 'mailbox_ok' };
}

function decided(
  email: string,
  emailType: EmailType | null,
  validatedAt: Date | null,
  finding: Finding,
): Checked {
  return { kind: 'decided', ...finding, emailType, validatedAt, email };
}
