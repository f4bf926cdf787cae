import { sql } from 'drizzle-orm';
import { GRACE, type Pass } from './check.ts';

const REQUESTS: Pass = {
  from: sql`requests r`,
  subject: sql`r.id`,
  checks: {
    request_overdue: sql`r.settled_at is null and r.deadline_at < now() - ${GRACE}`,
    completed_late: sql`r.status = 'completed' and r.settled_at > r.deadline_at`,
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

/**
 * Finds stored addresses that were erased. An erasure leaves a tombstone in suppressions, with the
 * NPI or the hash of the address. Addresses are hashed only if there are tombstones, because hashing
 * all of them is slow.
 */
const ERASED: Pass = {
  from: sql`(
    with tombstones as materialized (
      select kind, value from suppressions where origin = 'erasure'
    ), addresses as (
      select id as subject, npi, email
        from requests
       where email is not null and test_outcome is null
      union all
      select 'candidate ' || npi || ' ' || lookup_id, npi, email from candidates
      union all
      select 'directory ' || npi, npi, email from stored_emails
      union all
      select 'evidence ' || npi || ' ' || id, npi, email from email_checks
      union all
      select 'endpoint ' || npi, npi, endpoint_address(endpoint)
        from provider_endpoints
       where endpoint like '%@%'
    )
    select subject
      from addresses
     where exists (select from tombstones)
       and (npi in (select value from tombstones where kind = 'npi')
            or encode(sha256(convert_to(lower(email), 'UTF8')), 'hex')
               in (select value from tombstones where kind = 'email'))) h`,
  subject: sql`h.subject`,
  checks: {
    erased_but_held: sql`true`,
  },
};

/**
 * Finds sandbox requests that called a vendor or took a lookup's turn. All other tables that
 * sandboxes must not use have constraints that reject a sandbox's rows.
 */
const SANDBOXES: Pass = {
  from: sql`
    requests r
    join (
      select request_id from vendor_attempts
      union all
      select turn_of from lookups
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
