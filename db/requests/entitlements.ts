import { type SQL, sql } from 'drizzle-orm';
import { run, span, type Transaction } from '../client.ts';
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

type Values<K extends string> = Readonly<Record<K, SQL | Date | string | null>>;

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
 * second choice is a valid email of the directory: professional before personal, then the newest.
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
  const { organizationId, requestedType, at } = asked;
  const npis = sql.param([...new Set(asked.npis)]);
  const rows = await run<KnownEmail & { readonly npi: string }>(tx)`
    with paid as (
      select e.npi, e.email_type, r.email, r.email_last_validated_at
        from entitlements e join requests r on r.id = e.request_id
       where e.organization_id = ${organizationId}
         and e.npi = any(${npis})
         and e.charged_at >= ${at}::timestamptz - ${span(replayMs)}
         and ${requestedType} in ('any', e.email_type)
         and not is_inactive(e.npi)
    ), known as (
      select npi, email, email_type, email_last_validated_at, true as replayed, true as is_same
        from paid
       where email is not null and not is_suppressed(npi, email)
      union all
      select npi, email, email_type, last_validated_at, npi in (select npi from paid), false
        from stored_emails
       where npi = any(${npis}) and ${isUsable(asked, freshnessMs)}
    )
    select distinct on (npi)
           npi,
           email,
           email_type as "emailType",
           email_last_validated_at as "emailLastValidatedAt",
           replayed,
           (select n from suppression_changes) as "suppressionChange"
      from known
     order by npi, is_same desc, email_type desc, email_last_validated_at desc, email desc`;
  return new Map(rows.map(({ npi, ...known }) => [npi, known]));
}

/**
 * True if the email in a row of stored_emails may be returned: it is valid, fresh, of the requested
 * type, and not suppressed, and the provider is active.
 */
export function isUsable(
  { requestedType, lookupId, at }: Values<'requestedType' | 'lookupId' | 'at'>,
  freshnessMs: number,
): SQL {
  return sql`
    verdict = 'valid'
      and not unchecked
      and last_validated_at >= ${at}::timestamptz - ${span(freshnessMs)}
      and ${requestedType} in ('any', email_type)
      -- An address that its source does not let us keep is returned only to the lookup in which the
      -- source named it. Without a lookup, its id is null and the comparison is never true.
      and (may_store or exists (
        select from email_checks c
         where c.lookup_id = ${lookupId}
           and c.npi = stored_emails.npi
           and c.email = stored_emails.email
           and c.kind = 'named'))
      and not is_suppressed(stored_emails.npi, stored_emails.email)
      and not is_inactive(stored_emails.npi)`;
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
