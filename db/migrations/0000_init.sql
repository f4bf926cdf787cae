-- The rules about money and state live here, so that no code path can break them.
-- Times carry milliseconds, because that is what the API shows.

create table organizations (
  id text primary key,
  name text not null check (length(name) between 1 and 200),
  requests_per_minute integer not null default 100 check (requests_per_minute between 1 and 100000),
  webhook_secret text not null,
  previous_webhook_secret text,
  previous_webhook_secret_expires_at timestamptz(3),
  webhooks_suspended boolean not null default false,
  created_at timestamptz(3) not null default clock_timestamp(),
  check ((previous_webhook_secret is null) = (previous_webhook_secret_expires_at is null))
);
--> statement-breakpoint
create table api_keys (
  id text primary key,
  organization_id text not null references organizations,
  name text not null check (length(name) between 1 and 200),
  hint text not null,
  hash bytea not null unique check (octet_length(hash) = 32),
  created_at timestamptz(3) not null default clock_timestamp(),
  expires_at timestamptz(3),
  revoked_at timestamptz(3)
);
--> statement-breakpoint
create index api_keys_by_organization on api_keys (organization_id);
--> statement-breakpoint
-- The times at which a key's last requests were admitted, oldest first: the sliding window itself.
create table rate_windows (
  api_key_id text primary key references api_keys,
  hits timestamptz[] not null,
  admitted boolean not null
) with (fillfactor = 50);
--> statement-breakpoint
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
  updated_at timestamptz(3) not null,
  deadline_at timestamptz(3) not null,
  -- Null until Temporal has the batch workflow: the outbox that the sweep empties.
  started_at timestamptz(3),
  -- When the sweep last looked whether the workflows of this batch still live.
  checked_at timestamptz(3),
  unique (id, organization_id),
  check ((webhook_url is null) = (webhook_mode is null)),
  check (submitted_as = 'bulk' or total = 1)
);
--> statement-breakpoint
create index batches_not_started on batches (created_at) where started_at is null;
--> statement-breakpoint
create index batches_in_progress on batches (id) where status = 'in-progress';
--> statement-breakpoint
create index batches_by_organization on batches (organization_id, created_at);
--> statement-breakpoint
create table requests (
  id text primary key,
  batch_id text not null,
  organization_id text not null,
  position smallint not null check (position between 0 and 59),
  npi text collate "C" not null check (npi ~ '^[0-9]{10}$'),
  wanted_type text not null check (wanted_type in ('any', 'professional', 'personal')),
  cost smallint not null generated always as (case when wanted_type = 'personal' then 3 else 1 end) stored,
  status text not null check (status in ('accepted', 'in-progress', 'completed', 'not_found', 'failed')),
  replayed boolean not null default false,
  credits_used smallint not null generated always as (
    case when status = 'completed' and not replayed then case when wanted_type = 'personal' then 3 else 1 end else 0 end
  ) stored,
  email text,
  email_type text check (email_type in ('professional', 'personal')),
  email_last_validated_at timestamptz(3),
  -- Why there is no email; for operators, never shown by the API.
  reason text,
  accepted_at timestamptz(3) not null,
  deadline_at timestamptz(3) not null,
  started_at timestamptz(3),
  settled_at timestamptz(3),
  unique (batch_id, position),
  unique (id, organization_id),
  foreign key (batch_id, organization_id) references batches (id, organization_id),
  constraint requests_email_iff_completed check (
    num_nonnulls(email, email_type, email_last_validated_at) = case when status = 'completed' then 3 else 0 end
  ),
  constraint requests_settled_iff_final check (
    (settled_at is not null) = (status in ('completed', 'not_found', 'failed'))
  ),
  constraint requests_replayed_only_completed check (not replayed or status = 'completed'),
  constraint requests_wanted_type_is_a_filter check (
    status <> 'completed' or wanted_type = 'any' or email_type = wanted_type
  )
);
--> statement-breakpoint
create index requests_open on requests (deadline_at) where settled_at is null;
--> statement-breakpoint
create index requests_by_npi on requests (npi, organization_id);
--> statement-breakpoint
-- One row per movement between the four accounts of an organization; every row sums to zero by itself.
create table ledger_entries (
  id bigint primary key generated always as identity,
  organization_id text not null references organizations,
  request_id text,
  kind text not null check (kind in ('grant', 'adjustment', 'hold', 'charge', 'release')),
  amount bigint not null,
  granted bigint not null generated always as (case when kind in ('grant', 'adjustment') then -amount else 0 end) stored,
  available bigint not null generated always as (
    case when kind in ('grant', 'adjustment', 'release') then amount when kind = 'hold' then -amount else 0 end
  ) stored,
  held bigint not null generated always as (
    case when kind = 'hold' then amount when kind in ('charge', 'release') then -amount else 0 end
  ) stored,
  used bigint not null generated always as (case when kind = 'charge' then amount else 0 end) stored,
  side text not null generated always as (
    case when kind in ('charge', 'release') then 'settlement' when kind = 'hold' then 'hold' else 'funding' end
  ) stored,
  hold_side text generated always as (case when kind in ('charge', 'release') then 'hold' end) stored,
  created_at timestamptz(3) not null default clock_timestamp(),
  constraint ledger_entries_balanced check (granted + available + held + used = 0),
  constraint ledger_entries_amount check (amount > 0 or (kind = 'adjustment' and amount <> 0)),
  constraint ledger_entries_request check ((request_id is not null) = (kind in ('hold', 'charge', 'release'))),
  -- One hold and at most one charge or release per request.
  constraint ledger_entries_once unique (request_id, side),
  unique (request_id, side, amount),
  -- A settlement settles a hold of its own amount.
  foreign key (request_id, hold_side, amount) references ledger_entries (request_id, side, amount),
  foreign key (request_id, organization_id) references requests (id, organization_id)
);
--> statement-breakpoint
create index ledger_entries_by_organization on ledger_entries (organization_id, id);
--> statement-breakpoint
-- What the ledger adds up to, kept by a trigger; its checks are what makes overspending impossible.
create table credit_balances (
  organization_id text primary key references organizations,
  total bigint not null default 0 check (total >= 0),
  available bigint not null default 0 constraint credit_balances_available check (available >= 0),
  held bigint not null default 0 check (held >= 0),
  used bigint not null default 0 check (used >= 0),
  constraint credit_balances_conserved check (total = available + held + used)
) with (fillfactor = 50);
--> statement-breakpoint
create function apply_ledger_entries() returns trigger language plpgsql as $$
begin
  update credit_balances b
     set total = b.total - n.granted, available = b.available + n.available,
         held = b.held + n.held, used = b.used + n.used
    from (select organization_id, sum(granted) granted, sum(available) available, sum(held) held, sum(used) used
            from added group by organization_id) n
   where b.organization_id = n.organization_id;
  return null;
end $$;
--> statement-breakpoint
create trigger ledger_entries_apply after insert on ledger_entries
  referencing new table as added for each statement execute function apply_ledger_entries();
--> statement-breakpoint
create function refuse_change() returns trigger language plpgsql as $$
begin
  raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;
--> statement-breakpoint
create trigger ledger_entries_append_only before update or delete on ledger_entries
  for each row execute function refuse_change();
--> statement-breakpoint
create trigger ledger_entries_no_truncate before truncate on ledger_entries
  for each statement execute function refuse_change();
--> statement-breakpoint
create function open_credit_balance() returns trigger language plpgsql as $$
begin
  insert into credit_balances (organization_id) values (new.id);
  return null;
end $$;
--> statement-breakpoint
create trigger organizations_open_balance after insert on organizations
  for each row execute function open_credit_balance();
--> statement-breakpoint
create function guard_request_state() returns trigger language plpgsql as $$
begin
  if old.settled_at is not null then
    raise exception 'request % is final', old.id using errcode = 'restrict_violation', constraint = 'requests_final';
  end if;
  if old.status = 'in-progress' and new.status = 'accepted' then
    raise exception 'request % never goes back to accepted', old.id
      using errcode = 'restrict_violation', constraint = 'requests_never_backwards';
  end if;
  return new;
end $$;
--> statement-breakpoint
create trigger requests_guard_state before update on requests
  for each row execute function guard_request_state();
--> statement-breakpoint
create function count_settled_requests() returns trigger language plpgsql as $$
begin
  update batches b
     set completed_count = b.completed_count + n.settled, updated_at = greatest(b.updated_at, n.at)
    from (select batch_id, count(settled_at) settled, max(coalesce(settled_at, started_at, accepted_at)) at
            from changed group by batch_id) n
   where b.id = n.batch_id;
  return null;
end $$;
--> statement-breakpoint
create trigger requests_count_inserted after insert on requests
  referencing new table as changed for each statement execute function count_settled_requests();
--> statement-breakpoint
create trigger requests_count_updated after update on requests
  referencing new table as changed for each statement execute function count_settled_requests();
--> statement-breakpoint
-- Checked at commit: what a request says of itself and what the ledger says of it are the same thing.
create function check_request_against_ledger() returns trigger language plpgsql as $$
declare
  id_to_check text := case when tg_table_name = 'requests' then to_jsonb(new) ->> 'id' else to_jsonb(new) ->> 'request_id' end;
  request requests;
  entries text;
begin
  select * into request from requests where id = id_to_check;
  select coalesce(string_agg(kind, '+' order by id), '') into entries from ledger_entries where request_id = id_to_check;
  if (case
        when request.settled_at is null then entries = 'hold'
        when request.status = 'completed' and not request.replayed then entries = 'hold+charge'
        when request.status = 'completed' then entries in ('', 'hold+release')
        else entries = 'hold+release'
      end) then
    return null;
  end if;
  raise exception 'request % is % with ledger entries "%"', id_to_check, request.status, entries
    using errcode = 'check_violation', constraint = 'requests_settled_in_ledger';
end $$;
--> statement-breakpoint
create constraint trigger requests_settled_in_ledger after insert or update of status on requests
  deferrable initially deferred for each row execute function check_request_against_ledger();
--> statement-breakpoint
create constraint trigger ledger_entries_match_request after insert on ledger_entries
  deferrable initially deferred for each row when (new.request_id is not null)
  execute function check_request_against_ledger();
--> statement-breakpoint
-- Wakes the polls that wait for a change of this batch. Nothing else: commits with a NOTIFY queue for one lock.
create function announce_batch_change() returns trigger language plpgsql as $$
begin
  perform pg_notify('batch_changed', new.id);
  return null;
end $$;
--> statement-breakpoint
create trigger batches_announce_change after update on batches
  for each row when (
    old.completed_count is distinct from new.completed_count or old.updated_at is distinct from new.updated_at
  )
  execute function announce_batch_change();
--> statement-breakpoint
-- What an organization has paid for: the row whose conditional upsert decides between charge and replay.
create table entitlements (
  organization_id text not null references organizations,
  npi text collate "C" not null,
  email_type text not null check (email_type in ('professional', 'personal')),
  request_id text not null references requests,
  charged_at timestamptz(3) not null,
  primary key (organization_id, npi, email_type)
);
--> statement-breakpoint
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
--> statement-breakpoint
create index idempotency_keys_by_expiry on idempotency_keys (expires_at);
--> statement-breakpoint
create table webhook_deliveries (
  id text primary key,
  batch_id text not null references batches,
  request_id text references requests,
  state text not null check (state in ('pending', 'delivered', 'failed', 'none')),
  attempts smallint not null default 0,
  created_at timestamptz(3) not null,
  decided_at timestamptz(3),
  unique nulls not distinct (batch_id, request_id),
  check ((decided_at is null) = (state in ('pending', 'none')))
);
--> statement-breakpoint
create index webhook_deliveries_pending on webhook_deliveries (batch_id) where state = 'pending';
--> statement-breakpoint
create table webhook_attempts (
  delivery_id text not null references webhook_deliveries,
  n smallint not null,
  started_at timestamptz(3) not null,
  duration_ms integer not null,
  status_code smallint,
  error_code text,
  response_excerpt bytea check (octet_length(response_excerpt) <= 1024),
  primary key (delivery_id, n)
);
--> statement-breakpoint
create function touch_batch_of_delivery() returns trigger language plpgsql as $$
begin
  update batches set updated_at = greatest(updated_at, clock_timestamp()) where id = new.batch_id;
  return null;
end $$;
--> statement-breakpoint
create trigger webhook_deliveries_touch_batch after update of state on webhook_deliveries
  for each row when (old.state is distinct from new.state) execute function touch_batch_of_delivery();
--> statement-breakpoint
-- One row per question put to a vendor. Written before the call, so that a crash leaves a trace of it.
create table vendor_attempts (
  request_id text not null references requests,
  vendor text not null,
  n smallint not null,
  state text not null check (state in ('submitting', 'pending', 'found', 'miss', 'skip', 'blocked', 'retry', 'fatal', 'lost')),
  job_ref text,
  reason text,
  started_at timestamptz(3) not null,
  ended_at timestamptz(3),
  primary key (request_id, vendor, n),
  check ((ended_at is null) = (state in ('submitting', 'pending'))),
  check (state <> 'pending' or job_ref is not null)
);
--> statement-breakpoint
-- The directory: every address a vendor ever named for an NPI, with the newest verdict on it and where it came from.
create table stored_emails (
  npi text collate "C" not null check (npi ~ '^[0-9]{10}$'),
  email text not null,
  email_type text check (email_type in ('professional', 'personal')),
  verdict text not null check (verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')),
  reason text,
  last_validated_at timestamptz(3),
  source text not null,
  source_request_id text references requests,
  -- Set while the candidate waits for our own checks.
  unchecked boolean not null default false,
  first_seen_at timestamptz(3) not null default clock_timestamp(),
  updated_at timestamptz(3) not null default clock_timestamp(),
  primary key (npi, email),
  constraint stored_emails_valid_is_complete check (
    verdict <> 'valid' or unchecked or (email_type is not null and last_validated_at is not null)
  )
);
--> statement-breakpoint
create table audit_log (
  id bigint primary key generated always as identity,
  at timestamptz(3) not null default clock_timestamp(),
  actor text not null check (length(actor) between 1 and 200),
  action text not null,
  organization_id text references organizations,
  subject text,
  reason text not null check (length(reason) between 1 and 1000),
  details jsonb not null default '{}'
);
--> statement-breakpoint
create trigger audit_log_append_only before update or delete on audit_log
  for each row execute function refuse_change();
