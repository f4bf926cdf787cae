import { type SQL, sql } from 'drizzle-orm';
import { GRACE, type Pass } from './check.ts';
import { charged } from './ledger.ts';

const REQUESTS: Pass = {
  from: sql`requests r`,
  subject: sql`r.id`,
  checks: {
    request_overdue: sql`r.settled_at is null and r.deadline_at < now() - ${GRACE}`,
    completed_late: sql`r.status = 'completed' and r.settled_at > r.deadline_at`,
    email_of_other_type: sql`r.status = 'completed'
        and r.requested_type <> 'any' and r.requested_type <> r.email_type`,
    request_state: sql`num_nonnulls(r.email, r.email_type, r.email_last_validated_at)
          <> case when r.status = 'completed' and r.erased_at is null then 3 else 0 end
        or (r.erased_at is not null and r.status <> 'completed')
        or (r.settled_at is not null) <> (r.status in ('completed', 'not_found', 'failed'))
        or (r.replayed and r.status <> 'completed')
        or r.cost <= 0
        or r.credits_used <> case when ${charged} then r.cost else 0 end`,
  },
};

const LOOKUPS: Pass = {
  from: sql`
    (select * from lookups where closed_at is null and opened_at < now() - ${GRACE}) l
    left join (
      select lookup_id, bool_or(settled_at is null or settled_at > now() - ${GRACE}) as lives
        from requests where lookup_id is not null group by lookup_id
    ) r on r.lookup_id = l.id`,
  subject: sql`l.id`,
  checks: {
    lookup_left_open: sql`r.lives is not true`,
  },
};

const REQUESTS_AND_LOOKUPS: Pass = {
  from: sql`
    (select * from requests where lookup_id is not null or status = 'in-progress') r
    left join lookups l on l.id = r.lookup_id`,
  subject: sql`r.id`,
  checks: {
    request_lookup: sql`r.test_outcome is null
        and r.status = case when r.lookup_id is null then 'in-progress' else 'accepted' end`,
    lookup_of_other: sql`l.npi <> r.npi or l.requested_type <> r.requested_type`,
  },
};

function hash(email: string): SQL {
  return sql`encode(sha256(convert_to(lower(${sql.raw(email)}), 'UTF8')), 'hex')`;
}

/**
 * Selects the rows that still hold an erased address. An erasure leaves a tombstone in
 * suppressions, with the NPI or the hash of the address. Addresses are hashed only if there are
 * tombstones, because hashing all of them is slow.
 */
function held(
  table: string,
  subject: string,
  email = 't.email',
  isAddress = 't.email is not null',
): SQL {
  return sql`
    select ${sql.raw(subject)} as subject
      from ${sql.raw(table)} t
     where ${sql.raw(isAddress)}
       and (select count(*) from tombstones) > 0
       and (t.npi in (select value from tombstones where kind = 'npi')
            or ${hash(email)} in (select value from tombstones where kind = 'email'))`;
}

const ERASED: Pass = {
  from: sql`(
    with tombstones as materialized (select kind, value from suppressions where origin = 'erasure')
    ${held('requests', 't.id', 't.email', 't.email is not null and t.test_outcome is null')}
    union all
    ${held('stored_emails', "'directory ' || t.npi")}
    union all
    ${held('email_checks', "'evidence ' || t.npi || ' ' || t.id")}
    union all
    ${held(
      'provider_endpoints',
      "'endpoint ' || t.npi",
      'endpoint_address(t.endpoint)',
      "t.endpoint like '%@%'",
    )}) h`,
  subject: sql`h.subject`,
  checks: {
    erased_but_held: sql`true`,
  },
};

/**
 * Finds sandbox requests that called a vendor or claimed a stored address. All other tables that
 * sandboxes must not use have constraints that reject a sandbox's rows.
 */
const SANDBOXES: Pass = {
  from: sql`
    requests r
    join (
      select request_id from vendor_attempts
      union all
      select checking_for from stored_emails
    ) s on s.request_id = r.id and r.test_outcome is not null`,
  subject: sql`r.id`,
  checks: { sandbox_not_apart: sql`true` },
};

/**
 * All checks of requests (ARCHITECTURE.md, Invariants, L3, L4, S2), lookups, erasures, and
 * sandboxes.
 */
export const REQUEST_PASSES = [
  REQUESTS,
  LOOKUPS,
  REQUESTS_AND_LOOKUPS,
  ERASED,
  SANDBOXES,
];
