import { sql } from 'drizzle-orm';
import { run, span, type Transaction } from '../connection/client.ts';
import type { entitlements, requests, storedEmails } from '../schema.ts';
import type { RequestedType } from '../words.ts';

type StoredEmail = Readonly<typeof storedEmails.$inferSelect>;

/** A known email that completes a request without a lookup. */
export interface KnownEmail
  extends Readonly<Pick<typeof entitlements.$inferSelect, 'emailType'>> {
  readonly email: StoredEmail['email'];
  readonly emailLastValidatedAt: NonNullable<StoredEmail['lastValidatedAt']>;
  /** True if the organization has already paid for this NPI and email type. */
  readonly replayed: boolean;
  /**
   * The value of suppression_changes.n when this email was checked against the suppressions. Null in
   * a sandbox.
   */
  readonly suppressionChange: number | null;
}

export interface KnownWindows {
  readonly freshnessMs: number;
  readonly replayMs: number;
}

/** The requests to find known emails for. */
export interface KnownQuery {
  readonly organizationId: string;
  readonly npis: readonly string[];
  readonly requestedType: RequestedType;
  readonly at: Date;
  /** The lookup of the request that is settled; null at submit. */
  readonly lookupId: string | null;
}

/**
 * Finds the emails that complete requests without a lookup, by NPI. The first choice is an email
 * that the organization already paid for within the replay window. It is returned for free. The
 * second choice is a valid email of the directory, or of this lookup if it may not be kept:
 * professional before personal, then the newest.
 * The replay window starts at the charge and ends `replayMs` later, inclusive (DECISIONS.md,
 * Requests and batches).
 *
 * An address that was erased or suppressed after the charge is not returned again. Because the
 * organization paid for it, another address of the directory is then returned for free.
 */
export async function findKnownEmails(
  tx: Pick<Transaction, 'execute'>,
  asked: KnownQuery,
  { freshnessMs, replayMs }: KnownWindows,
): Promise<Map<string, KnownEmail>> {
  const { organizationId, requestedType, at, lookupId } = asked;
  const npis = sql.param([...new Set(asked.npis)]);
  const rows = await run<KnownEmail & { readonly npi: string }>(tx)`
    with paid as (
      select e.npi, e.email_type, r.email, r.email_last_validated_at
        from entitlements e join requests r on r.id = e.request_id
       where e.organization_id = ${organizationId}
         and e.npi = any(${npis})
         and e.charged_at >= ${at}::timestamptz - ${span(replayMs)}
         and ${requestedType} in ('any', e.email_type)
    ), known as (
      select npi, email, email_type, email_last_validated_at, true as is_same
        from paid
       where email is not null
      union all
      select npi, email, email_type, last_validated_at, false
        from stored_emails s
       where npi = any(${npis})
         and is_usable(s, ${requestedType}, ${lookupId}::text is not null, ${at}, ${span(freshnessMs)})
      union all
      select npi, email, email_type, validated_at, false
        from candidates
       where lookup_id = ${lookupId}
         and npi = any(${npis})
         and verdict = 'valid'
         and validated_at >= ${at}::timestamptz - ${span(freshnessMs)}
         and ${requestedType} in ('any', email_type)
    )
    select distinct on (npi)
           npi,
           email,
           email_type as "emailType",
           email_last_validated_at as "emailLastValidatedAt",
           npi in (select npi from paid) as replayed,
           (select n from suppression_changes) as "suppressionChange"
      from known
     where refusal_of(npi) is null and not is_suppressed(npi, email)
     order by npi, is_same desc, email_type desc, email_last_validated_at desc, email desc`;
  return new Map(rows.map(({ npi, ...known }) => [npi, known]));
}

/** The fields of a completed request that an entitlement needs. */
const CHARGED_FIELDS = ['id', 'npi', 'emailType', 'settledAt'] as const;
type ChargedRequest = Pick<typeof requests.$inferInsert, (typeof CHARGED_FIELDS)[number]>;

/**
 * Claims the right to charge for completed requests that are not replays. It is one conditional
 * statement, so that if two requests for the same NPI and type settle at once, exactly one of them
 * is charged within a replay window (ARCHITECTURE.md, Invariants, L5). The caller holds the
 * organization's lock. The rows are passed and not read again, because a plan that PostgreSQL keeps
 * from the time when the table was small would scan all requests.
 * @throws {Error} if another request was charged within the replay window. The caller's transaction
 * must be rolled back
 */
export async function claimEntitlements(
  tx: Pick<Transaction, 'execute'>,
  organizationId: string,
  charged: readonly ChargedRequest[],
  replayMs: number,
): Promise<void> {
  const rows = JSON.stringify(charged, [...CHARGED_FIELDS]);
  const claimed = await run(tx)`
    insert into entitlements as e (organization_id, npi, email_type, request_id, charged_at)
    select ${organizationId}, npi, "emailType", id, "settledAt"
      from json_to_recordset(${rows}::json)
             r (id text, npi text, "emailType" text, "settledAt" timestamptz)
        on conflict (organization_id, npi, email_type) do update
       set request_id = excluded.request_id, charged_at = excluded.charged_at
     where e.charged_at < excluded.charged_at - ${span(replayMs)}
    returning 1`;
  if (claimed.length < charged.length)
    throw new Error('another request was charged for this within the replay window');
}
