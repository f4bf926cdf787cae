-- Live enrichment: who an NPI is, what is asked of whom, what each answer was worth, and who wants to be left alone.

-- NPPES, as far as it is used: one row per NPI. What nothing reads (sex, licences, mailing address) is not kept.
create table providers (
  npi text collate "C" primary key check (npi ~ '^[0-9]{10}$'),
  -- 1: a person, 2: an organization; null in the rows of deactivated NPIs, which carry nothing else.
  entity_type smallint check (entity_type in (1, 2)),
  last_name text,
  first_name text,
  middle_name text,
  name_suffix text,
  credential text,
  other_last_name text,
  other_first_name text,
  organization_name text,
  taxonomy_code text,
  practice_line_1 text,
  practice_line_2 text,
  practice_city text,
  practice_state text,
  practice_postal_code text,
  practice_phone text,
  -- What providers of one practice share, in one spelling: ten digits; street and number with the five-digit ZIP.
  phone_key text,
  address_key text,
  updated_on date,
  deactivated_on date,
  reactivated_on date,
  active boolean not null generated always as (
    deactivated_on is null or (reactivated_on is not null and reactivated_on >= deactivated_on)
  ) stored,
  origin text not null check (origin in ('nppes', 'registry')),
  -- The day whose state this is: the last one of the file, or that of the question. Nothing older replaces it.
  as_of date not null default current_date,
  -- Tells an unchanged row from a changed one without comparing columns.
  row_hash bigint not null,
  imported_at timestamptz(3) not null default clock_timestamp()
);
--> statement-breakpoint
-- Organizations at the same phone or address as a person.
create index providers_organizations_by_phone on providers (phone_key) where entity_type = 2;
--> statement-breakpoint
create index providers_organizations_by_address on providers (address_key) where entity_type = 2;
--> statement-breakpoint
create table provider_endpoints (
  npi text collate "C" not null,
  kind text not null check (kind in ('DIRECT', 'CONNECT', 'SOAP', 'FHIR', 'REST', 'OTHERS')),
  endpoint text not null,
  affiliated boolean,
  affiliation_name text,
  primary key (npi, kind, endpoint)
);
--> statement-breakpoint
-- An erasure finds the addresses of a person wherever they stand.
create index provider_endpoints_by_address on provider_endpoints (lower(endpoint)) where endpoint like '%@%';
--> statement-breakpoint
-- Names that organizations do business under.
create table provider_other_names (
  npi text collate "C" not null,
  name text not null,
  type_code text not null,
  primary key (npi, name, type_code)
);
--> statement-breakpoint
-- Practice locations beside the primary one, of persons and organizations.
create table provider_locations (
  npi text collate "C" not null,
  line_1 text not null,
  line_2 text not null,
  city text not null,
  state text not null,
  postal_code text not null,
  phone text,
  phone_key text,
  address_key text,
  primary key (npi, line_1, line_2, city, state, postal_code)
);
--> statement-breakpoint
create index provider_locations_by_phone on provider_locations (phone_key);
--> statement-breakpoint
create index provider_locations_by_address on provider_locations (address_key);
--> statement-breakpoint
create table import_runs (
  id text primary key,
  kind text not null check (kind in ('nppes', 'emails', 'suppressions')),
  -- The file's name without its folder, and what tells the same file again.
  file text not null,
  fingerprint text not null,
  state text not null check (state in ('running', 'done', 'failed')),
  checkpoint jsonb not null default '{}',
  counts jsonb not null default '{}',
  started_at timestamptz(3) not null default clock_timestamp(),
  finished_at timestamptz(3),
  check ((finished_at is null) = (state = 'running'))
);
--> statement-breakpoint
create index import_runs_by_fingerprint on import_runs (fingerprint);
--> statement-breakpoint
-- One lookup serves every request that waits for the same NPI and type, of whatever organization.
create table lookups (
  id text primary key,
  npi text collate "C" not null check (npi ~ '^[0-9]{10}$'),
  wanted_type text not null check (wanted_type in ('any', 'professional', 'personal')),
  opened_at timestamptz(3) not null,
  -- Set when a request it serves has its answer, or none is left waiting: the next request opens a new one.
  closed_at timestamptz(3)
);
--> statement-breakpoint
create unique index lookups_open on lookups (npi, wanted_type) where closed_at is null;
--> statement-breakpoint
create index lookups_by_npi on lookups (npi, opened_at);
--> statement-breakpoint
-- Who was asked for lately is re-verified.
create index requests_by_time on requests (accepted_at);
--> statement-breakpoint
alter table requests add column lookup_id text references lookups;
--> statement-breakpoint
create index requests_by_lookup on requests (lookup_id) where lookup_id is not null;
--> statement-breakpoint
-- Attempts belonged to one request so far; each of those requests becomes a lookup of its own.
insert into lookups (id, npi, wanted_type, opened_at, closed_at)
  select 'lkp' || substr(r.id, 4), r.npi, r.wanted_type, coalesce(r.started_at, r.accepted_at),
         coalesce(r.settled_at, clock_timestamp())
    from requests r where exists (select from vendor_attempts a where a.request_id = r.id);
--> statement-breakpoint
alter table requests disable trigger user;
--> statement-breakpoint
update requests r set lookup_id = 'lkp' || substr(r.id, 4)
 where exists (select from vendor_attempts a where a.request_id = r.id);
--> statement-breakpoint
alter table requests enable trigger user;
--> statement-breakpoint
alter table vendor_attempts rename to old_vendor_attempts;
--> statement-breakpoint
-- One row per question put to a vendor. Written before the call, so that a crash leaves a trace of it.
create table vendor_attempts (
  lookup_id text not null references lookups,
  vendor text not null,
  n smallint not null,
  -- Whose workflow asked; every request of the lookup has the answer.
  request_id text not null references requests,
  state text not null check (state in ('submitting', 'pending', 'found', 'miss', 'skip', 'blocked', 'retry', 'fatal', 'lost')),
  job_ref text,
  reason text,
  -- Until when whoever is asking may be assumed alive.
  lease_until timestamptz(3),
  polls integer not null default 0,
  -- What the vendor charges for, in its own credits; set aside at submit, corrected by the answer.
  credits numeric(12, 3) not null default 0 check (credits >= 0),
  candidates smallint not null default 0,
  started_at timestamptz(3) not null,
  ended_at timestamptz(3),
  primary key (lookup_id, vendor, n),
  check ((ended_at is null) = (state in ('submitting', 'pending'))),
  check (state <> 'pending' or job_ref is not null)
);
--> statement-breakpoint
insert into vendor_attempts (lookup_id, vendor, n, request_id, state, job_ref, reason, started_at, ended_at)
  select 'lkp' || substr(request_id, 4), vendor, n, request_id, state, job_ref, reason, started_at, ended_at
    from old_vendor_attempts;
--> statement-breakpoint
drop table old_vendor_attempts;
--> statement-breakpoint
-- At most one question per lookup and vendor is open at a time, whoever asks it.
create unique index vendor_attempts_open on vendor_attempts (lookup_id, vendor) where ended_at is null;
--> statement-breakpoint
create index vendor_attempts_by_time on vendor_attempts (started_at);
--> statement-breakpoint
create index vendor_attempts_by_request on vendor_attempts (request_id);
--> statement-breakpoint
-- The health of everything that is called for money or under a limit: vendors, verifiers, the NPI registry.
create table source_health (
  source text primary key,
  state text not null default 'closed' check (state in ('closed', 'open')),
  failures integer not null default 0,
  -- While open: when one trial call may be made. Grows with each failed trial.
  open_until timestamptz(3),
  times_opened integer not null default 0,
  -- The trial call that is under way, assumed dead after this.
  trial_until timestamptz(3),
  -- The source's own word (Retry-After): nobody asks before.
  paused_until timestamptz(3),
  last_error text,
  changed_at timestamptz(3) not null default clock_timestamp()
);
--> statement-breakpoint
-- Global rate limits (GCRA, one row per limit): when the next call would be due at an even pace.
create table source_rates (
  source text not null,
  limit_name text not null,
  due_at timestamptz not null,
  primary key (source, limit_name)
) with (fillfactor = 50);
--> statement-breakpoint
-- What a source may still cost on a day (UTC) is one conditional update of this row.
create table source_spend (
  source text not null,
  day date not null,
  credits numeric(14, 3) not null default 0 check (credits >= 0),
  primary key (source, day)
) with (fillfactor = 50);
--> statement-breakpoint
-- While somebody checks it, or a mail server has asked to come back: nobody else is paid for the same check.
alter table stored_emails add column checking_until timestamptz(3);
--> statement-breakpoint
-- False where the source's licence lets us answer with an address but not keep it: it serves its own lookup alone.
alter table stored_emails add column may_store boolean not null default true;
--> statement-breakpoint
create index stored_emails_going_stale on stored_emails (last_validated_at) where verdict = 'valid' and not unchecked;
--> statement-breakpoint
create index stored_emails_not_kept on stored_emails (updated_at) where not may_store;
--> statement-breakpoint
-- A person who wants to be erased names an address, not an NPI.
create index stored_emails_by_email on stored_emails (email);
--> statement-breakpoint
-- Every judgement ever made of an address: who named it, which check rejected or accepted it, and why.
create table email_checks (
  id bigint primary key generated always as identity,
  npi text collate "C" not null,
  email text not null,
  lookup_id text references lookups,
  -- named: a source proposed it; identity, local: our own checks; verifier: a mailbox check; verdict: what came of all.
  kind text not null check (kind in ('named', 'identity', 'local', 'verifier', 'verdict')),
  -- Vendor, verifier or `nppes`; ours is `service`.
  source text not null,
  verdict text not null check (verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')),
  reason text,
  duration_ms integer,
  at timestamptz(3) not null default clock_timestamp()
);
--> statement-breakpoint
create index email_checks_by_npi on email_checks (npi, email, id);
--> statement-breakpoint
create index email_checks_by_lookup on email_checks (lookup_id) where lookup_id is not null;
--> statement-breakpoint
create index email_checks_by_email on email_checks (email);
--> statement-breakpoint
-- How verifiers do, as vendor_attempts_by_vendor tells of vendors.
create index email_checks_by_verifier on email_checks (at) where kind = 'verifier';
--> statement-breakpoint
-- Who must not be looked up or returned. Addresses are kept as SHA-256 only, so that the list itself holds nobody.
create table suppressions (
  kind text not null check (kind in ('npi', 'email', 'domain')),
  -- An NPI; the hex SHA-256 of an address in lower case; a domain in lower case, its subdomains included.
  value text collate "C" not null,
  origin text not null check (origin in ('import', 'vendor', 'erasure', 'operator')),
  reason text not null default '',
  created_at timestamptz(3) not null default clock_timestamp(),
  primary key (kind, value),
  check (case kind when 'npi' then value ~ '^[0-9]{10}$' when 'email' then value ~ '^[0-9a-f]{64}$' else value ~ '^[a-z0-9.-]+$' end)
);
--> statement-breakpoint
-- Whether an NPI, or this address of it, must not be given to anyone. A null address asks for the NPI alone.
create function is_suppressed(an_npi text, an_email text) returns boolean language sql stable parallel safe as $$
  select exists (
    select from suppressions where kind = 'npi' and value = an_npi
    union all
    select from suppressions where kind = 'email' and value = encode(sha256(convert_to(lower(an_email), 'UTF8')), 'hex')
    union all
    select from suppressions s, unnest(string_to_array(split_part(lower(an_email), '@', 2), '.')) with ordinality label(name, i)
     where s.kind = 'domain'
       and s.value = array_to_string((string_to_array(split_part(lower(an_email), '@', 2), '.'))[i:], '.')
  )
$$;
--> statement-breakpoint
-- Whether this NPI is no active individual: nothing is answered for it, whatever is stored. What the registry did not
-- know counts for a day; what NPPES says, until the next file.
create function is_inactive(an_npi text) returns boolean language sql stable parallel safe as $$
  select exists (
    select from providers where npi = an_npi
       and (entity_type = 2 or not active and (origin = 'nppes' or imported_at > now() - interval '24 hours'))
  )
$$;
--> statement-breakpoint
-- A person may have their address erased from what was answered; what was paid for it stays on the books.
alter table requests add column erased_at timestamptz(3);
--> statement-breakpoint
alter table requests drop constraint requests_email_iff_completed;
--> statement-breakpoint
alter table requests add constraint requests_email_iff_completed check (
  num_nonnulls(email, email_type, email_last_validated_at) =
    case when status = 'completed' and erased_at is null then 3 else 0 end
);
--> statement-breakpoint
alter table requests add constraint requests_erased_only_completed check (erased_at is null or status = 'completed');
--> statement-breakpoint
create index requests_by_email on requests (email) where email is not null;
--> statement-breakpoint
create or replace function guard_request_state() returns trigger language plpgsql as $$
begin
  if old.settled_at is not null then
    -- Final but for one change: the erasure of the address. Generated columns are not computed yet; they follow the rest.
    if new.erased_at is not null and old.erased_at is null
       and to_jsonb(new) - array['email', 'email_type', 'email_last_validated_at', 'erased_at', 'cost', 'credits_used']
         = to_jsonb(old) - array['email', 'email_type', 'email_last_validated_at', 'erased_at', 'cost', 'credits_used'] then
      return new;
    end if;
    raise exception 'request % is final', old.id using errcode = 'restrict_violation', constraint = 'requests_final';
  end if;
  if old.status = 'in-progress' and new.status = 'accepted' then
    raise exception 'request % never goes back to accepted', old.id
      using errcode = 'restrict_violation', constraint = 'requests_never_backwards';
  end if;
  return new;
end $$;
--> statement-breakpoint
-- An erasure changes a request that has been counted: only what becomes final by this statement counts.
drop trigger requests_count_updated on requests;
--> statement-breakpoint
create function count_newly_settled_requests() returns trigger language plpgsql as $$
begin
  update batches b
     set completed_count = b.completed_count + n.settled, updated_at = greatest(b.updated_at, n.at)
    from (select c.batch_id, count(c.settled_at) filter (where e.settled_at is null) settled,
                 max(coalesce(c.erased_at, c.settled_at, c.started_at, c.accepted_at)) at
            from changed c join earlier e on e.id = c.id group by c.batch_id) n
   where b.id = n.batch_id;
  return null;
end $$;
--> statement-breakpoint
create trigger requests_count_updated after update on requests
  referencing old table as earlier new table as changed
  for each statement execute function count_newly_settled_requests();
