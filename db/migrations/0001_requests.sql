-- Batches of requests, and the lookups that answer them.

-- A lookup serves every request that waits for the same NPI and type, across organizations.
create table lookups (
  id text primary key,
  npi text collate "C" not null check (npi ~ '^[0-9]{10}$'),
  wanted_type text not null check (wanted_type in ('any', 'professional', 'personal')),
  opened_at timestamptz(3) not null,
  -- Set when one of its requests has its result, or when the last waiting one has given up. The
  -- next request opens a new lookup.
  closed_at timestamptz(3),
  -- The hash of the facts that were known when it began. A later lookup with the same hash skips
  -- vendors that had no result here. Null if no miss is remembered.
  facts text
);
create unique index lookups_open on lookups (npi, wanted_type) where closed_at is null;
create index lookups_by_npi on lookups (npi, opened_at);
create index lookups_facts_by_age on lookups (opened_at) where facts is not null;

create table batches (
  id text primary key,
  organization_id text not null references organizations,
  api_key_id text references api_keys,
  submitted_as text not null check (submitted_as in ('single', 'bulk')),
  wanted_type text not null check (wanted_type in ('any', 'professional', 'personal')),
  total smallint not null check (total between 1 and 60),
  completed_count smallint not null default 0 check (completed_count between 0 and total),
  status text not null generated always as (case when completed_count = total then 'completed' else 'in-progress' end) stored,
  webhook_url text,
  webhook_mode text check (webhook_mode in ('real-time', 'batch')),
  custom_data text check (octet_length(custom_data) <= 16384),
  created_at timestamptz(3) not null,
  -- The version of the batch's envelope. Each change gets a different time (see `later`).
  updated_at timestamptz not null,
  deadline_at timestamptz(3) not null,
  -- Null until Temporal has started the batch workflow. Batches with null are the outbox.
  started_at timestamptz(3),
  -- When the sweep last checked that the workflows of this batch are running.
  checked_at timestamptz(3),
  check ((webhook_url is null) = (webhook_mode is null)),
  check (submitted_as = 'bulk' or total = 1)
);
create index batches_to_start on batches (created_at) where started_at is null;
create index batches_in_progress on batches (id) where status = 'in-progress';
create index batches_by_organization on batches (organization_id, created_at);
-- Retention reads the oldest rows first.
create index batches_custom_data_by_age on batches (created_at) where custom_data is not null;

create table requests (
  id text primary key,
  -- References a batch of the same organization: count_settled_requests checks this.
  batch_id text not null,
  organization_id text not null,
  position smallint not null check (position between 0 and 59),
  npi text collate "C" not null check (npi ~ '^[0-9]{10}$'),
  wanted_type text not null check (wanted_type in ('any', 'professional', 'personal')),
  -- Set at submit, so that a price change does not affect past requests.
  cost smallint not null constraint requests_cost_positive check (cost > 0),
  status text not null check (status in ('accepted', 'in-progress', 'completed', 'not_found', 'failed')),
  lookup_id text references lookups,
  replayed boolean not null default false,
  credits_used smallint not null generated always as (
    case when status = 'completed' and not replayed then cost else 0 end
  ) stored,
  email text,
  email_type text check (email_type in ('professional', 'personal')),
  email_last_validated_at timestamptz(3),
  -- The value of suppression_changes.n at which this email was known not to be suppressed. The
  -- check is skipped while the value is the same.
  suppression_change bigint,
  -- Why there is no email; for operators, never shown by the API.
  reason text,
  accepted_at timestamptz(3) not null,
  deadline_at timestamptz(3) not null,
  started_at timestamptz(3),
  settled_at timestamptz(3),
  -- Set when the address was erased from the result at the person's request. The charge stays in
  -- the ledger.
  erased_at timestamptz(3),
  -- The outcome of a sandbox request; null for all other requests.
  test_outcome text check (test_outcome in (
    'professional', 'personal', 'found', 'stored', 'replayed', 'slow', 'greylisted', 'not_found', 'failed', 'deadline'
  )),
  unique (batch_id, position),
  constraint requests_email_iff_completed check (
    num_nonnulls(email, email_type, email_last_validated_at) =
      case when status = 'completed' and erased_at is null then 3 else 0 end
  ),
  constraint requests_settled_iff_final check (
    (settled_at is not null) = (status in ('completed', 'not_found', 'failed'))
  ),
  constraint requests_replayed_only_completed check (not replayed or status = 'completed'),
  constraint requests_erased_only_completed check (erased_at is null or status = 'completed'),
  constraint requests_wanted_type_is_a_filter check (
    status <> 'completed' or wanted_type = 'any' or email_type = wanted_type
  ),
  constraint requests_test_is_of_sandbox check (is_sandbox(organization_id) = (test_outcome is not null)),
  -- Lookups and their dependent rows are shared by all organizations.
  constraint requests_test_joins_no_lookup check (num_nonnulls(test_outcome, lookup_id) < 2)
);
create index requests_open on requests (deadline_at) where settled_at is null;
create index requests_by_npi on requests (npi, organization_id);
-- Finds an organization's results of a period. BRIN, because rows are stored in the order of time,
-- so the index costs almost nothing.
create index requests_by_settlement on requests using brin (settled_at);
create index requests_by_lookup on requests (lookup_id) where lookup_id is not null;
create index requests_by_email on requests (email) where email is not null;
create index requests_answers_by_age on requests (settled_at) where email is not null;

-- Returns the made-up addresses that an outcome brings for an NPI. Their hosts can have no owner
-- (RFC 2606).
create function sandbox_emails(an_npi text, an_outcome text) returns table (npi text, email text, email_type text)
language sql immutable strict as $$
  select an_npi, 'npi' || an_npi || host, type
    from (values ('professional', '@clinic.example.com'), ('personal', '@home.example.com')) made_up (type, host)
   where an_outcome not in ('not_found', 'failed', 'deadline')
     and (an_outcome not in ('professional', 'personal') or an_outcome = type)
$$;

create function refuse_change() returns trigger language plpgsql as $$
begin
  raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;

-- The owner is checked once per statement at insert, so it must not change later.
create trigger batches_kept before delete or update of id, organization_id on batches
  for each row execute function refuse_change();

create trigger requests_kept before delete or update of id, batch_id, organization_id on requests
  for each row execute function refuse_change();

create function guard_request_state() returns trigger language plpgsql as $$
begin
  if new.cost <> old.cost then
    raise exception 'the price of request % does not change', old.id
      using errcode = 'restrict_violation', constraint = 'requests_price_kept';
  end if;
  if old.settled_at is not null then
    -- A final request allows one change: the erasure of the address. Generated columns are
    -- excluded, because they are not computed yet.
    if new.erased_at is not null and old.erased_at is null
       and to_jsonb(new) - array['email', 'email_type', 'email_last_validated_at', 'erased_at', 'credits_used']
         = to_jsonb(old) - array['email', 'email_type', 'email_last_validated_at', 'erased_at', 'credits_used'] then
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

create trigger requests_guard_state before update on requests
  for each row execute function guard_request_state();

create function later(than timestamptz, at timestamptz) returns timestamptz language sql stable as $$
  select greatest(than + interval '1 microsecond', at)
$$;

-- Counts inserted requests in their batches and adds their holds, and their charges if they are
-- completed. The loop updates one batch at a time by its id. For a join with the rows of a
-- statement the planner expects two hundred rows and reads all batches.
create function count_settled_requests() returns trigger language plpgsql as $$
declare
  n record;
begin
  for n in
    select batch_id, organization_id, count(settled_at) as settled,
           max(coalesce(settled_at, started_at, accepted_at)) as at
      from changed group by batch_id, organization_id
  loop
    update batches b
       set completed_count = b.completed_count + n.settled, updated_at = greatest(b.updated_at, n.at)
     where b.id = n.batch_id and b.organization_id = n.organization_id;
    if not found then
      raise exception 'a request is of a batch of its organization'
        using errcode = 'foreign_key_violation', constraint = 'requests_batch';
    end if;
  end loop;
  insert into ledger_entries (organization_id, request_id, kind, amount, created_at)
  select organization_id, id, entry.kind, cost, entry.at
    from changed, lateral (values
           ('hold', accepted_at), (case when credits_used > 0 then 'charge' else 'release' end, settled_at)
         ) entry (kind, at)
   where not replayed and entry.at is not null
   order by entry.kind = 'hold' desc, position;
  return null;
end $$;

create trigger requests_count_inserted after insert on requests
  referencing new table as changed for each statement execute function count_settled_requests();

-- Counts requests that became final in this statement, signals their changes, and adds their
-- charges and releases. An erasure changes a request that was already counted, so it is not counted
-- again.
create function count_newly_settled_requests() returns trigger language plpgsql as $$
declare
  n record;
begin
  if not exists (select from changed) then
    return null;
  end if;
  for n in
    select c.batch_id, count(c.settled_at) filter (where e.settled_at is null) as settled,
           max(coalesce(c.erased_at, c.settled_at, c.started_at, c.accepted_at)) as at
      from changed c join earlier e on e.id = c.id
     where (c.status, c.erased_at) is distinct from (e.status, e.erased_at) group by c.batch_id
  loop
    update batches b set completed_count = b.completed_count + n.settled, updated_at = later(b.updated_at, n.at)
     where b.id = n.batch_id;
  end loop;
  perform pg_notify('changed', c.id || case when c.settled_at is null then '' else ' final' end)
     from changed c join earlier e on e.id = c.id and e.status <> c.status;
  insert into ledger_entries (organization_id, request_id, kind, amount, created_at)
  select c.organization_id, c.id, case when c.credits_used > 0 then 'charge' else 'release' end, c.cost, c.settled_at
    from changed c join earlier e on e.id = c.id
   where c.settled_at is not null and e.settled_at is null;
  return null;
end $$;

create trigger requests_count_updated after update on requests
  referencing old table as earlier new table as changed
  for each statement execute function count_newly_settled_requests();

create trigger batches_announce_change after update on batches
  for each row when (
    old.status = new.status
    and (old.completed_count is distinct from new.completed_count or old.updated_at is distinct from new.updated_at)
  )
  execute function announce_change();

create trigger batches_announce_end after update on batches
  for each row when (old.status <> new.status) execute function announce_change(' final');

create table idempotency_keys (
  organization_id text not null references organizations,
  method text not null,
  path text not null,
  key text not null check (length(key) between 1 and 255),
  fingerprint bytea not null,
  -- Null only inside the transaction that writes the batch.
  response text,
  created_at timestamptz(3) not null,
  expires_at timestamptz(3) not null,
  primary key (organization_id, method, path, key)
);
create index idempotency_keys_by_expiry on idempotency_keys (expires_at);
