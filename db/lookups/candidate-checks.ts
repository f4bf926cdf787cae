import { sql } from 'drizzle-orm';
import { type Database, lasts, run, span } from '../connection/client.ts';
import type { candidates } from '../schema.ts';
import { type RequestedType, SERVICE } from '../words.ts';
import type { NamedCandidate } from './candidates.ts';
import { type CheckedEmail, type Evidence, IS_TYPED_DIRECT, namedBy } from './checks.ts';
import { epochMs } from './sources.ts';
import type { Turn } from './turns.ts';

// Chooses the candidate that is checked next, and records the result of its check. The order of the
// tables in these statements is that of candidates.ts.

type Candidate = Readonly<typeof candidates.$inferSelect>;

/** A candidate with all data that its check needs. */
export interface CandidateToCheck
  extends Omit<NamedCandidate, 'isCurrent' | 'confidence'>,
    Pick<Candidate, 'source' | 'repeatsInput'> {
  /** The number of different sources that named the address within the last 30 days. */
  readonly namedBy: number;
  /** True if NPPES lists the address for this provider as an endpoint of type DIRECT. */
  readonly isTypedDirect: boolean;
  /**
   * The time at which the check begins, in milliseconds since the epoch by PostgreSQL's clock.
   * Customers see it as the date of the check, and a worker's clock may be wrong.
   */
  readonly begunAt: number;
  /**
   * The newest verdict other than `unknown` that a verifier gave within the last 24 hours. `at` is
   * in milliseconds since the epoch.
   */
  readonly lastVerdict:
    | (Pick<Evidence, 'verdict' | 'reason'> & { readonly at: number })
    | null;
  /** The verifiers that returned `unknown` within the last 24 hours, each with its reason. */
  readonly undecided: Readonly<Record<string, string>>;
  /** The time since the lookup learned of the address, in milliseconds. */
  readonly waitedMs: number;
}

/** The next candidate to check, if any. */
export interface NextCandidate {
  /** The best candidate that may be checked now. */
  readonly candidate: CandidateToCheck | null;
  /** True if candidates wait for the end of the pause that their mail servers asked for. */
  readonly areLater: boolean;
  /** True if a checked candidate completes a request for the type. */
  readonly isFound: boolean;
}

type NextRow = Omit<CandidateToCheck, 'email'> &
  Pick<NextCandidate, 'areLater' | 'isFound'> & {
    readonly email: string | null;
    /** The end of the renewed turn. */
    readonly until: Date;
  };

/**
 * Renews the turn, and returns the lookup's best candidate that waits for its check. The best is
 * checked first, because no other address is checked once one is valid. Addresses at an employer's
 * domain come first, then those of a professional type, then those that their source names as
 * current, calls valid, or is more confident of, and then the newest.
 * @param search.employerDomains the registrable domains of the person's likely employers
 * @param search.except addresses that the caller has already handled
 * @param search.isDeadline true to check even before the end of a mail server's pause
 * @param search.greylistMs the longest such pause
 * @param search.turnMs the longest duration of the check
 * @param search.requestedType the type of the request, for `isFound`
 * @returns null if another request has taken the turn
 */
export async function nextCandidate(
  db: Database,
  turn: Turn,
  search: {
    readonly employerDomains: readonly string[];
    readonly except: readonly string[];
    readonly isDeadline: boolean;
    readonly greylistMs: number;
    readonly turnMs: number;
    readonly requestedType: RequestedType;
    readonly freshnessMs: number;
  },
): Promise<NextCandidate | null> {
  const { employerDomains, except, isDeadline, greylistMs, turnMs } = search;
  const { requestedType, freshnessMs } = search;
  const isPaused = lasts(sql`check_after`, greylistMs);
  const [next] = await run<NextRow>(db)`
    with renewed as (
      update lookups
         set turn_until = clock_timestamp() + ${span(turnMs)}
       where id = ${turn.lookupId}
         and turn_of = ${turn.requestId}
         and turn_until = ${turn.until}
      returning turn_until, opened_at
    ), waiting as (
      select *, coalesce(${isPaused}, false) and not ${isDeadline}::boolean as is_later
        from candidates
       where lookup_id = ${turn.lookupId}
         and verdict is null
         and email <> all(${sql.param([...except])}::text[])
         and not is_suppressed(npi, email)
    ), best as (
      select *
        from waiting
       where not is_later
       order by exists (
                  select from unnest(${sql.param([...employerDomains])}::text[]) employer(domain)
                   where email like '%@' || domain or email like '%.' || domain) desc,
                claimed_type = 'professional' desc nulls last,
                is_current desc,
                claimed_verdict = 'valid' desc,
                confidence desc nulls last,
                claimed_date desc nulls last,
                email
       limit 1
    )
    select renewed.turn_until as until,
           exists (select from waiting where is_later) as "areLater",
           has_usable_candidate(${turn.lookupId}, ${requestedType}, clock_timestamp(),
                                ${span(freshnessMs)}) as "isFound",
           s.email,
           s.claimed_type as "vendorType",
           s.claimed_verdict as verdict,
           s.claimed_date as "validatedAt",
           s.source,
           ${IS_TYPED_DIRECT} as "isTypedDirect",
           s.repeats_input as "repeatsInput",
           floor(${epochMs(sql`clock_timestamp()`)})::float8 as "begunAt",
           (select json_build_object(
                     'verdict', c.verdict,
                     'reason', c.reason,
                     'at', ${epochMs(sql`c.at`)})
              from email_checks c
             where c.npi = s.npi and c.email = s.email
               and c.kind = 'verifier' and c.verdict <> 'unknown'
               and c.at > now() - interval '24 hours'
             order by c.id desc limit 1) as "lastVerdict",
           (select coalesce(json_object_agg(c.source, c.reason), '{}')
              from email_checks c
             where c.npi = s.npi and c.email = s.email
               and c.kind = 'verifier' and c.verdict = 'unknown'
               and c.reason <> 'greylisted'
               and not starts_with(c.reason, 'verifier_')
               and c.at > now() - interval '24 hours') as undecided,
           -- A copied candidate may be older than the lookup.
           ${epochMs(sql`clock_timestamp() - greatest(s.named_at, renewed.opened_at)`)} as "waitedMs",
           ${namedBy(0)} as "namedBy"
      from renewed left join best s on true`;
  if (next === undefined) return null;
  const { until, areLater, isFound, email, ...rest } = next;
  turn.until = until;
  return { candidate: email === null ? null : { ...rest, email }, areLater, isFound };
}

/** A candidate whose check has ended. */
type CheckedCandidate = Pick<Candidate, 'lookupId' | 'email'>;

/**
 * Records the verdict about a candidate with its evidence, in its row and in the directory. The
 * directory gets it from the candidate's row. So nothing is recorded if the address was erased during
 * the check, and the directory gets no address that may not be kept.
 */
export async function recordVerdict(
  db: Database,
  { lookupId, email }: CheckedCandidate,
  evidence: readonly Evidence[],
  { verdict, reason, emailType, validatedAt }: CheckedEmail,
): Promise<void> {
  const last = {
    kind: 'verdict',
    source: SERVICE,
    verdict,
    reason,
    durationMs: null,
  } as const;
  await run(db)`
    with checked as (
      update candidates
         set verdict = ${verdict},
             email_type = ${emailType},
             reason = ${reason},
             validated_at = ${validatedAt}::timestamptz,
             check_after = null
       where lookup_id = ${lookupId}
         and email = ${email}
         -- A worker that was too slow and lost its turn overwrites no valid address.
         and verdict is distinct from 'valid'
      returning *
    ), stored as (
      insert into stored_emails as s (
        npi, email, verdict, email_type, reason, last_validated_at, source, repeats_input
      )
      select npi, email, verdict, email_type, reason, validated_at, source, repeats_input
        from checked
       where may_store
          on conflict (npi, email) do update
         set verdict = excluded.verdict,
             email_type = excluded.email_type,
             reason = excluded.reason,
             last_validated_at = excluded.last_validated_at,
             source = excluded.source,
             repeats_input = s.repeats_input and excluded.repeats_input,
             updated_at = clock_timestamp()
    )
    select add_evidence(${lookupId}, npi, email, ${JSON.stringify([...evidence, last])}::jsonb)
      from checked`;
}

/**
 * Records the evidence of a check that reached no verdict. The candidate waits for another check.
 * @param greylistMs how long its mail server asked us to wait; null if it did not ask
 */
export async function recordUndecided(
  db: Database,
  { lookupId, email }: CheckedCandidate,
  evidence: readonly Evidence[],
  greylistMs: number | null,
): Promise<void> {
  const seconds = greylistMs === null ? null : greylistMs / 1000;
  await run(db)`
    with waiting as (
      update candidates
         set check_after = coalesce(
               clock_timestamp() + make_interval(secs => ${seconds}::float8), check_after)
       where lookup_id = ${lookupId} and email = ${email} and verdict is null
      returning *
    )
    select add_evidence(${lookupId}, npi, email, ${JSON.stringify(evidence)}::jsonb)
      from waiting`;
}
