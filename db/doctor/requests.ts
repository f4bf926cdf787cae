import { sql } from 'drizzle-orm';
import { GRACE, type Pass } from './check.ts';
import { charged } from './ledger.ts';

const REQUESTS: Pass = {
  from: sql`requests r`,
  subject: sql`r.id`,
  checks: [
    {
      code: 'request_overdue',
      title: 'request still open 60 s past its deadline',
      explanation:
        'Check that a worker runs: its sweep settles them. --fix settles them as failed and refunds.',
      when: sql`r.settled_at is null and r.deadline_at < now() - ${GRACE}`,
    },
    {
      code: 'completed_late',
      title: 'request completed after its deadline',
      explanation: 'It had to end as failed with a refund: "credits adjust ORG" by its price.',
      when: sql`r.status = 'completed' and r.settled_at > r.deadline_at`,
    },
    {
      code: 'email_of_other_type',
      title: 'email of another type than wanted',
      explanation: 'The wanted type is a filter: refund with "credits adjust ORG".',
      when: sql`r.status = 'completed' and r.wanted_type <> 'any' and r.wanted_type <> r.email_type`,
    },
    {
      code: 'request_state',
      title: 'request whose columns contradict each other',
      explanation:
        'An email belongs to completed unless it was erased, a settling time to final, replayed to completed, a price to each.',
      when: sql`num_nonnulls(r.email, r.email_type, r.email_last_validated_at) 
          <> case when r.status = 'completed' and r.erased_at is null then 3 else 0 end
        or (r.erased_at is not null and r.status <> 'completed')
        or (r.settled_at is not null) <> (r.status in ('completed', 'not_found', 'failed'))
        or (r.replayed and r.status <> 'completed')
        or r.cost <= 0
        or r.credits_used <> case when ${charged} then r.cost else 0 end`,
    },
  ],
};

const LOOKUPS: Pass = {
  from: sql`
    (select * from lookups where closed_at is null and opened_at < now() - ${GRACE}) l
    left join (
      select lookup_id, bool_or(settled_at is null or settled_at > now() - ${GRACE}) as lives
        from requests where lookup_id is not null group by lookup_id
    ) r on r.lookup_id = l.id`,
  subject: sql`l.id`,
  checks: [
    {
      code: 'lookup_left_open',
      title: 'open lookup that no request has waited for in 60 s',
      explanation:
        'The next request for its NPI would get its old answers instead of asking anew. --fix closes it.',
      when: sql`r.lives is not true`,
    },
  ],
};

const REQUESTS_AND_LOOKUPS: Pass = {
  from: sql`
    (select * from requests where lookup_id is not null or status = 'in-progress') r
    left join lookups l on l.id = r.lookup_id`,
  subject: sql`r.id`,
  checks: [
    {
      code: 'request_lookup',
      title: 'request in progress without a lookup, or with one and not in progress yet',
      explanation:
        'Both are written at once. Its workflow, or the sweep at its deadline, ends it all the same.',
      when: sql`r.status = case when r.lookup_id is null then 'in-progress' else 'accepted' end`,
    },
    {
      code: 'lookup_of_other',
      title: 'request that waits for the lookup of another NPI or type',
      explanation:
        'It may have been given somebody else\'s address: look with "explain REQUEST", tell the customer.',
      when: sql`l.npi <> r.npi or l.wanted_type <> r.wanted_type`,
    },
  ],
};

const hash = (email: string) => sql`encode(sha256(convert_to(lower(${sql.raw(email)}), 'UTF8')), 'hex')`;
/** Rows that hold an address, of a tombstone's NPI or with its hash; addresses are hashed only if there is any. */
const held = (table: string, subject: string, email = 't.email', isAddress = 't.email is not null') => sql`
  select ${sql.raw(subject)} as subject from ${sql.raw(table)} t
   where ${sql.raw(isAddress)} and (select count(*) from tombstones) > 0
     and (t.npi in (select value from tombstones where kind = 'npi')
          or ${hash(email)} in (select value from tombstones where kind = 'email'))`;

const ERASED: Pass = {
  from: sql`(
    with tombstones as materialized (select kind, value from suppressions where origin = 'erasure')
    ${held('requests', 't.id')}
    union all ${held('stored_emails', "'directory ' || t.npi")}
    union all ${held('email_checks', "'evidence ' || t.npi || ' ' || t.id")}
    union all ${held('provider_endpoints', "'endpoint ' || t.npi", 'endpoint_address(t.endpoint)', "t.endpoint like '%@%'")}) h`,
  subject: sql`h.subject`,
  checks: [
    {
      code: 'erased_but_held',
      title: 'address that a person had erased and that is still held',
      explanation:
        'Nobody is shown it, but it has to go: run "privacy erase" again, for the NPI or for the address.',
      when: sql`true`,
    },
  ],
};

/** Requests in themselves (ARCHITECTURE.md, Invariants, L3, L4, S2), their lookups, and what an erasure has removed. */
export const REQUEST_PASSES = [REQUESTS, LOOKUPS, REQUESTS_AND_LOOKUPS, ERASED];
