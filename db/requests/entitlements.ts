import { type SQL, sql } from 'drizzle-orm';
import { run, span, type Transaction } from '../client.ts';
import type { EmailType, TestOutcome, WantedType } from '../words.ts';

/** An email that can answer a request without asking anyone. */
export interface KnownEmail {
  readonly email: string;
  readonly emailType: EmailType;
  readonly emailLastValidatedAt: Date;
  /** Whether the organization has paid for this answer already. */
  readonly replayed: boolean;
  /** The last change of suppressions that it was seen after. */
  readonly suppressionChange: number;
}

export interface KnownWindows {
  readonly freshnessMs: number;
  readonly replayMs: number;
}

type Values<K extends string> = Readonly<Record<K, SQL | Date | string | null>>;

/**
 * The emails that answer requests without asking anyone, at most one per NPI: what the organization
 * has paid for within the replay window and may have again for nothing, else a valid one of the
 * directory. The professional one is preferred, then the newest. Exactly `replayMs` after the
 * charge still counts; the clock starts at the charge (DECISIONS.md, Requests and batches).
 *
 * An address that was erased or suppressed since is not given again. It was paid for all the same:
 * another one that the directory holds comes in its place, free as well.
 * @param asked.npis what an NPI is compared with: a column, or `any(…)`
 */
export function knownEmails(
  asked: Values<'organizationId' | 'wantedType' | 'at' | 'lookupId'> & { readonly npis: SQL },
  { freshnessMs, replayMs }: KnownWindows,
): SQL {
  const { npis } = asked;
  return sql`
    with paid as (${paidFor(asked, replayMs)} and not is_inactive(e.npi))
    select distinct on (npi) * from (
      select npi, email, email_type, email_last_validated_at, true as replayed, true as is_same from paid
       where email is not null and not is_suppressed(npi, email)
      union all
      select npi, email, email_type, last_validated_at, npi in (select npi from paid), false from stored_emails
       where npi = ${npis} and ${isUsable(asked, freshnessMs)}
    ) known
     order by npi, is_same desc, email_type desc, email_last_validated_at desc, email desc`;
}

type Asked = Values<'organizationId' | 'wantedType' | 'at'> & { readonly npis: SQL };

function paidFor({ organizationId, npis, wantedType, at }: Asked, replayMs: number): SQL {
  return sql`
      select e.npi, e.email_type, r.email, r.email_last_validated_at
        from entitlements e join requests r on r.id = e.request_id
       where e.organization_id = ${organizationId} and e.npi = ${npis}
         and e.charged_at >= ${at}::timestamptz - ${span(replayMs)} and ${wantedType} in ('any', e.email_type)`;
}

/**
 * The same for one request of a sandbox, which knows no directory, nobody who is inactive and
 * nobody who is suppressed: what its outcome brings, unless that was paid for already. An outcome
 * that brings nothing is no replay either.
 * @param asked.outcome null for requests of other organizations: they get nothing
 * @param asked.isDue whether the outcome is to be had now
 */
export function sandboxEmails(
  asked: Asked & Record<'outcome' | 'isDue', SQL>,
  replayMs: number,
): SQL {
  const { npis, wantedType, at, outcome, isDue } = asked;
  return sql`
    with made_up as (select * from sandbox_emails(${npis}, ${outcome}) where ${wantedType} in ('any', email_type))
    select * from (
      select npi, email, email_type, email_last_validated_at, true as replayed, true as is_same
        from (${paidFor(asked, replayMs)}) paid where email is not null and exists (select from made_up)
      union all
      select npi, email, email_type, ${at}::timestamptz, ${outcome} = 'replayed', false from made_up where ${isDue}
    ) known
     order by is_same desc, email_type desc limit 1`;
}

/** @returns per NPI what `knownEmails`, or for a sandbox `sandboxEmails`, has for it */
export async function findKnownEmails(
  tx: Pick<Transaction, 'execute'>,
  asked: {
    readonly organizationId: string;
    readonly npis: readonly string[];
    readonly wantedType: WantedType;
    readonly at: Date;
    readonly lookupId: string | null;
    /** Of a sandbox's requests, in the order of `npis`. */
    readonly outcomes: readonly TestOutcome[] | null;
  },
  windows: KnownWindows,
): Promise<Map<string, KnownEmail>> {
  const { outcomes } = asked;
  const one = {
    npis: sql`one.npi`,
    outcome: sql`one.outcome`,
    isDue: sql`outcome in ('stored', 'replayed')`,
  };
  const npis = [...new Set(asked.npis)];
  // One by itself: a plan for lists of any length is thought to be worse for one, so that each
  // would be planned anew.
  const anyOf = npis.length === 1 ? sql`${npis[0]}` : sql`any(${sql.param(npis)})`;
  const emails = outcomes
    ? sql`select known.* from unnest(${sql.param(asked.npis)}::text[], ${sql.param(outcomes)}::text[]) one (npi, outcome)
          cross join lateral (${sandboxEmails({ ...asked, ...one }, windows.replayMs)}) known`
    : knownEmails({ ...asked, npis: anyOf }, windows);
  const rows = await run<KnownEmail & { readonly npi: string }>(tx)`
    select npi, email, email_type as "emailType", email_last_validated_at as "emailLastValidatedAt", replayed,
           (select n from suppression_changes) as "suppressionChange"
      from (${emails}) known`;
  return new Map(rows.map(({ npi, ...known }) => [npi, known]));
}

/**
 * Whether a row of stored_emails answers a lookup: it is valid, fresh, of the wanted type and not
 * suppressed.
 */
export function isUsable(
  { wantedType, lookupId, at }: Values<'wantedType' | 'lookupId' | 'at'>,
  freshnessMs: number,
): SQL {
  return sql`
    verdict = 'valid' and not unchecked and last_validated_at >= ${at}::timestamptz - ${span(freshnessMs)}
      and ${wantedType} in ('any', email_type)
      -- An address that its source does not let us keep serves its own lookup alone. Equality with null is never true.
      and (may_store or exists (select from email_checks c where c.lookup_id = ${lookupId}
            and c.npi = stored_emails.npi and c.email = stored_emails.email and c.kind = 'named'))
      and not is_suppressed(stored_emails.npi, stored_emails.email) and not is_inactive(stored_emails.npi)`;
}

/**
 * Takes the right to charge for each request of a statement's table `settled` that is charged: one
 * conditional statement, so that of two requests settling at once exactly one is charged within a
 * replay window (ARCHITECTURE.md, Invariants, L5). Whoever holds the organization's lock and has
 * found no replay gets it.
 */
export function claimEntitlements(replayMs: number): SQL {
  return sql`
    insert into entitlements as e (organization_id, npi, email_type, request_id, charged_at)
    select organization_id, npi, email_type, id, settled_at from settled where credits_used > 0
        on conflict (organization_id, npi, email_type) do update
       set request_id = excluded.request_id, charged_at = excluded.charged_at
     where e.charged_at < excluded.charged_at - ${span(replayMs)}
    returning 1`;
}

/**
 * How many of `settled` are charged, and how many of these were given the right to be by `claimed`.
 */
export const CLAIMS = sql`(select count(*)::int from settled where credits_used > 0) as charged,
  (select count(*)::int from claimed) as claimed`;

/** @throws what rolls the transaction back if more is charged than may be */
export function requireClaims({
  charged,
  claimed,
}: Readonly<Record<'charged' | 'claimed', number>>): void {
  if (charged !== claimed)
    throw new Error('another request was charged for this within the replay window');
}
