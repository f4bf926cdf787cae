import { and, eq, isNull, sql } from 'drizzle-orm';
import {
  type Database,
  query,
  run,
  span,
  type Transaction,
} from '../connection/client.ts';
import { requests } from '../schema.ts';
import type { EmailType, RequestedType, TestOutcome } from '../words.ts';
import type { KnownEmail } from './entitlements.ts';

/**
 * Marks a sandbox request as `in-progress`, as `joinLookup` does with other requests. Safe to
 * repeat.
 * @returns the requested type and the test outcome; null if the request is already final
 */
export async function beginForSandbox(db: Database, requestId: string) {
  const startedAt = sql`coalesce(started_at, date_trunc('milliseconds', clock_timestamp()))`;
  return await query(db, async (tx) => {
    const [begun] = await tx
      .update(requests)
      .set({ status: 'in-progress', startedAt })
      .where(and(eq(requests.id, requestId), isNull(requests.settledAt)))
      .returning({
        requestedType: requests.requestedType,
        outcome: requests.testOutcome,
      });
    return begun ?? null;
  });
}

/** The requests of a sandbox to find emails for. */
export interface SandboxQuery {
  readonly organizationId: string;
  readonly requestedType: RequestedType;
  readonly at: Date;
  /** The test outcome of each NPI. */
  readonly outcomes: ReadonlyMap<string, TestOutcome>;
}

/**
 * Finds the emails that complete sandbox requests whose simulated lookup has ended, by NPI. Sandbox
 * requests ignore the directory, suppressions, and inactive providers. If the organization already
 * paid for an email, that email is returned again. Otherwise the made-up email of the test outcome
 * is returned. An outcome without an email, such as `not_found`, never returns one.
 */
export async function findSandboxEmails(
  tx: Pick<Transaction, 'execute'>,
  asked: SandboxQuery,
  replayMs: number,
): Promise<Map<string, KnownEmail>> {
  const { requestedType, at, outcomes } = asked;
  const paid = await findPaidEmails(tx, asked, replayMs);
  const emails = new Map<string, KnownEmail>();
  for (const [npi, outcome] of outcomes) {
    const emailType = madeUpType(outcome, requestedType);
    if (emailType === null) continue;
    const madeUp = {
      email: `npi${npi}@${HOSTS[emailType]}`,
      emailType,
      emailLastValidatedAt: at,
      replayed: outcome === 'replayed',
      suppressionChange: null,
    };
    emails.set(npi, paid.get(npi) ?? madeUp);
  }
  return emails;
}

/**
 * Finds the emails that complete sandbox requests at submit, without a simulated lookup: replays,
 * and the made-up emails of the outcomes `stored` and `replayed`. If the client asked for another
 * outcome, the lookup is simulated even for a replay.
 */
export async function findStoredSandboxEmails(
  tx: Pick<Transaction, 'execute'>,
  asked: SandboxQuery & { readonly isOutcomeForced: boolean },
  replayMs: number,
): Promise<Map<string, KnownEmail>> {
  const emails = await findSandboxEmails(tx, asked, replayMs);
  for (const [npi, { replayed }] of emails) {
    const outcome = asked.outcomes.get(npi);
    if (outcome === 'stored' || outcome === 'replayed') continue;
    if (asked.isOutcomeForced || !replayed) emails.delete(npi);
  }
  return emails;
}

/** Finds the emails that the sandbox organization paid for within the replay window, by NPI. */
async function findPaidEmails(
  tx: Pick<Transaction, 'execute'>,
  { organizationId, requestedType, at, outcomes }: SandboxQuery,
  replayMs: number,
): Promise<Map<string, KnownEmail>> {
  const rows = await run<KnownEmail & { readonly npi: string }>(tx)`
    select distinct on (e.npi)
           e.npi,
           r.email,
           e.email_type as "emailType",
           r.email_last_validated_at as "emailLastValidatedAt",
           true as replayed,
           null as "suppressionChange"
      from entitlements e join requests r on r.id = e.request_id
     where e.organization_id = ${organizationId}
       and e.npi = any(${sql.param([...outcomes.keys()])})
       and e.charged_at >= ${at}::timestamptz - ${span(replayMs)}
       and ${requestedType} in ('any', e.email_type)
       and r.email is not null
     order by e.npi, e.email_type desc`;
  return new Map(rows.map(({ npi, ...known }) => [npi, known]));
}

/** The hosts of made-up addresses. RFC 2606 reserves them, so no real person can own an address. */
const HOSTS: Readonly<Record<EmailType, string>> = {
  professional: 'clinic.example.com',
  personal: 'home.example.com',
};

/** Returns the type of the made-up email, or null if the outcome has no email of this type. */
function madeUpType(
  outcome: TestOutcome,
  requestedType: RequestedType,
): EmailType | null {
  switch (outcome) {
    case 'not_found':
    case 'failed':
    case 'deadline':
      return null;
    case 'professional':
    case 'personal':
      return requestedType === 'any' || requestedType === outcome ? outcome : null;
    default:
      return requestedType === 'any' ? 'professional' : requestedType;
  }
}
