import { type SQL, sql } from 'drizzle-orm';
import { run, span, type Transaction } from '../client.ts';
import type { EmailType, RequestedType, TestOutcome } from '../words.ts';

/** A known email that completes a request without a lookup. */
export interface KnownEmail {
  readonly email: string;
  readonly emailType: EmailType;
  readonly emailLastValidatedAt: Date;
  /** True if the organization has already paid for this NPI and email type. */
  readonly replayed: boolean;
  /** The value of suppression_changes.n when this email was checked against the suppressions. */
  readonly suppressionChange: number;
}

export interface KnownWindows {
  readonly freshnessMs: number;
  readonly replayMs: number;
}

type Values<K extends string> = Readonly<Record<K, SQL | Date | string | null>>;

/**
 * Selects the emails that complete requests without a lookup, at most one per NPI. The first choice
 * is an email that the organization already paid for within the replay window. It is returned for
 * free. The second choice is a valid email of the directory: professional before personal, then the
 * newest. The replay window starts at the charge and ends `replayMs` later, inclusive
 * (DECISIONS.md, Requests and batches).
 *
 * An address that was erased or suppressed after the charge is not returned again. Because the
 * organization paid for it, another address of the directory is then returned for free.
 * @param asked.npis the NPIs as SQL that can follow `npi =`: a single value, or `any(…)`
 */
export function knownEmails(
  asked: Values<'organizationId' | 'requestedType' | 'at' | 'lookupId'> & {
    readonly npis: SQL;
  },
  { freshnessMs, replayMs }: KnownWindows,
): SQL {
  const { npis } = asked;
  return sql`
    with paid as (${paidFor(asked, replayMs)} and not is_inactive(e.npi))
    select distinct on (npi) * from (
      select npi, email, email_type, email_last_validated_at, true as replayed, true as is_same
        from paid
       where email is not null and not is_suppressed(npi, email)
      union all
      select npi, email, email_type, last_validated_at, npi in (select npi from paid), false
        from stored_emails
       where npi = ${npis} and ${isUsable(asked, freshnessMs)}
    ) known
     order by npi, is_same desc, email_type desc, email_last_validated_at desc, email desc`;
}

type Asked = Values<'organizationId' | 'requestedType' | 'at'> & { readonly npis: SQL };

function paidFor(
  { organizationId, npis, requestedType, at }: Asked,
  replayMs: number,
): SQL {
  return sql`
      select e.npi, e.email_type, r.email, r.email_last_validated_at
        from entitlements e join requests r on r.id = e.request_id
       where e.organization_id = ${organizationId}
         and e.npi = ${npis}
         and e.charged_at >= ${at}::timestamptz - ${span(replayMs)}
         and ${requestedType} in ('any', e.email_type)`;
}

/**
 * Selects the email that completes one sandbox request. Sandbox requests ignore the directory,
 * suppressions, and inactive providers. If the organization already paid for an email, that email
 * is returned again. Otherwise the made-up email of the test outcome is returned. An outcome
 * without an email, such as `not_found`, never returns one.
 * @param asked.outcome the test outcome as SQL. If it is null, because the organization is not a
 * sandbox, no email is selected
 * @param asked.isDue true if the request may be completed now, without waiting for the simulated
 * lookup
 */
export function sandboxEmails(
  asked: Asked & Record<'outcome' | 'isDue', SQL>,
  replayMs: number,
): SQL {
  const { npis, requestedType, at, outcome, isDue } = asked;
  return sql`
    with made_up as (
      select * from sandbox_emails(${npis}, ${outcome}) where ${requestedType} in ('any', email_type)
    )
    select * from (
      select npi, email, email_type, email_last_validated_at, true as replayed, true as is_same
        from (${paidFor(asked, replayMs)}) paid
       where email is not null and exists (select from made_up)
      union all
      select npi, email, email_type, ${at}::timestamptz, ${outcome} = 'replayed', false
        from made_up
       where ${isDue}
    ) known
     order by is_same desc, email_type desc
     limit 1`;
}

/** The requests to find known emails for. */
interface KnownQuery {
  readonly organizationId: string;
  readonly npis: readonly string[];
  readonly requestedType: RequestedType;
  readonly at: Date;
  readonly lookupId: string | null;
  /** The test outcomes in the order of `npis`; null if the organization is not a sandbox. */
  readonly outcomes: readonly TestOutcome[] | null;
}

/**
 * Finds the emails that complete requests without a lookup, by NPI. Uses `sandboxEmails` for a
 * sandbox and `knownEmails` for other organizations.
 */
export async function findKnownEmails(
  tx: Pick<Transaction, 'execute'>,
  asked: KnownQuery,
  windows: KnownWindows,
): Promise<Map<string, KnownEmail>> {
  const emails = emailsOf(asked, windows);
  const rows = await run<KnownEmail & { readonly npi: string }>(tx)`
    select npi,
           email,
           email_type as "emailType",
           email_last_validated_at as "emailLastValidatedAt",
           replayed,
           (select n from suppression_changes) as "suppressionChange"
      from (${emails}) known`;
  return new Map(rows.map(({ npi, ...known }) => [npi, known]));
}

function emailsOf(asked: KnownQuery, windows: KnownWindows): SQL {
  const { outcomes } = asked;
  if (outcomes) return emailsOfSandbox({ ...asked, outcomes }, windows.replayMs);
  const npis = [...new Set(asked.npis)];
  // A single NPI is compared by `=` and not by `any(…)`. For a list, PostgreSQL estimates that a
  // generic plan is expensive, so it would plan every execution of the statement again.
  const anyOf = npis.length === 1 ? sql`${npis[0]}` : sql`any(${sql.param(npis)})`;
  return knownEmails({ ...asked, npis: anyOf }, windows);
}

function emailsOfSandbox(
  asked: KnownQuery & { readonly outcomes: readonly TestOutcome[] },
  replayMs: number,
): SQL {
  const one = {
    npis: sql`one.npi`,
    outcome: sql`one.outcome`,
    isDue: sql`outcome in ('stored', 'replayed')`,
  };
  const npis = sql.param(asked.npis);
  const outcomes = sql.param(asked.outcomes);
  return sql`
    select known.*
      from unnest(${npis}::text[], ${outcomes}::text[]) one (npi, outcome)
     cross join lateral (${sandboxEmails({ ...asked, ...one }, replayMs)}) known`;
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

/**
 * Claims the right to charge for each charged request in the table expression `settled`. It is one
 * conditional statement, so that if two requests for the same NPI and type settle at once, exactly
 * one of them is charged within a replay window (ARCHITECTURE.md, Invariants, L5). The caller holds
 * the organization's lock and has found that the requests are not replays.
 */
export function claimEntitlements(replayMs: number): SQL {
  return sql`
    insert into entitlements as e (organization_id, npi, email_type, request_id, charged_at)
    select organization_id, npi, email_type, id, settled_at
      from settled
     where credits_used > 0
        on conflict (organization_id, npi, email_type) do update
       set request_id = excluded.request_id, charged_at = excluded.charged_at
     where e.charged_at < excluded.charged_at - ${span(replayMs)}
    returning 1`;
}

/**
 * Counts the charged requests in `settled`, and the rights to charge that `claimEntitlements`
 * claimed for them. The counts must be equal (see `requireClaims`).
 */
export const CLAIMS = sql`
  (select count(*)::int from settled where credits_used > 0) as charged,
  (select count(*)::int from claimed) as claimed`;

/**
 * Throws if a request is charged without the right to charge. The error rolls the transaction back.
 */
export function requireClaims({
  charged,
  claimed,
}: Readonly<Record<'charged' | 'claimed', number>>): void {
  if (charged !== claimed)
    throw new Error('another request was charged for this within the replay window');
}
