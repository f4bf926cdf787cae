import { sql } from 'drizzle-orm';
import { GRACE, type Pass } from './check.ts';

/** Lookups against the requests they serve, and what an erasure has to have removed. */
export function lookupPasses(): Pass[] {
  return [LOOKUPS, REQUESTS_AND_LOOKUPS, ERASED];
}

const LOOKUPS: Pass = {
  from: sql`
    (select * from lookups where closed_at is null and opened_at < now() - ${GRACE}) l
    left join (
      select lookup_id, bool_or(settled_at is null or settled_at > now() - ${GRACE}) as lives
        from requests where lookup_id is not null group by lookup_id
    ) r on r.lookup_id = l.id`,
  checks: [
    {
      code: 'lookup_left_open',
      title: 'open lookup that no request has waited for in 60 s',
      explanation:
        'The next request for its NPI would get its old answers instead of asking anew. --fix closes it.',
      subject: sql`l.id`,
      when: sql`r.lives is not true`,
    },
  ],
};

const REQUESTS_AND_LOOKUPS: Pass = {
  from: sql`
    (select * from requests where lookup_id is not null or status = 'in-progress') r
    left join lookups l on l.id = r.lookup_id`,
  checks: [
    {
      code: 'request_lookup',
      title: 'request in progress without a lookup, or with one and not in progress yet',
      explanation:
        'Both are written at once. Its workflow, or the sweep at its deadline, ends it all the same.',
      subject: sql`r.id`,
      when: sql`r.status = case when r.lookup_id is null then 'in-progress' else 'accepted' end`,
    },
    {
      code: 'lookup_of_other',
      title: 'request that waits for the lookup of another NPI or type',
      explanation:
        'It may have been given somebody else\'s address: look with "explain REQUEST", tell the customer.',
      subject: sql`r.id`,
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
  with: sql`tombstones as materialized (select kind, value from suppressions where origin = 'erasure')`,
  from: sql`(
    ${held('requests', 't.id')}
    union all ${held('stored_emails', "'directory ' || t.npi")}
    union all ${held('email_checks', "'evidence ' || t.npi || ' ' || t.id")}
    union all ${held('provider_endpoints', "'endpoint ' || t.npi", 'endpoint_address(t.endpoint)', "t.endpoint like '%@%'")}) h`,
  checks: [
    {
      code: 'erased_but_held',
      title: 'address that a person had erased and that is still held',
      explanation:
        'Nobody is shown it, but it has to go: run "privacy erase" again, for the NPI or for the address.',
      subject: sql`h.subject`,
      when: sql`true`,
    },
  ],
};
