-- The migrations hold the rules about money and state, so that no code path can break them. Times
-- have milliseconds, because the API returns milliseconds.

-- The sandbox of an organization is a separate organization with a special id. The id shows whether
-- a row belongs to a sandbox, so no join is needed, and the rules that keep sandboxes apart are
-- checks of one row.
create function is_sandbox(organization_id text) returns boolean language sql immutable parallel safe as $$
  select starts_with(organization_id, 'sbx_')
$$;

create table organizations (
  id text primary key,
  -- The organization whose test keys use this sandbox; null for other organizations.
  sandbox_of text unique references organizations,
  name text not null check (length(name) between 1 and 200),
  requests_per_minute integer not null default 100 check (requests_per_minute between 1 and 100000),
  webhook_secret text not null,
  previous_webhook_secret text,
  previous_webhook_secret_expires_at timestamptz(3),
  webhooks_suspended boolean not null default false,
  -- While true, all keys of the organization are rejected. The keys themselves do not change.
  suspended boolean not null default false,
  created_at timestamptz(3) not null default clock_timestamp(),
  check ((previous_webhook_secret is null) = (previous_webhook_secret_expires_at is null)),
  constraint organizations_secrets_encrypted check (
    webhook_secret !~ '^whsec_' and coalesce(previous_webhook_secret !~ '^whsec_', true)
  ),
  constraint organizations_sandbox check (
    is_sandbox(id) = (sandbox_of is not null) and is_sandbox(sandbox_of) is not true
  )
);

-- A value encrypted with each version of SECRETS_KEY. A program decrypts it to check that it has
-- the right key.
create table secret_keys (
  version text primary key,
  check_value text not null,
  created_at timestamptz(3) not null default clock_timestamp()
);

create table api_keys (
  id text primary key,
  organization_id text not null references organizations,
  name text not null check (length(name) between 1 and 200),
  hint text not null,
  hash bytea not null unique check (octet_length(hash) = 32),
  created_at timestamptz(3) not null default clock_timestamp(),
  expires_at timestamptz(3),
  revoked_at timestamptz(3),
  -- A leaked key must not be unrevoked by mistake.
  leaked boolean not null default false,
  -- True if the key begins with `npe_test_`.
  is_test boolean not null,
  constraint api_keys_test_is_of_sandbox check (is_test = is_sandbox(organization_id)),
  constraint api_keys_leaked_is_revoked check (not leaked or revoked_at is not null)
);
create index api_keys_by_organization on api_keys (organization_id);

-- Wakes the polls that wait for a change of this row or use this key, so that a revoked key ends
-- its polls. With the argument ' final' it also wakes the polls that wait for the end. Nothing else
-- uses NOTIFY, because commits with a NOTIFY queue for one lock.
create function announce_change() returns trigger language plpgsql as $$
begin
  perform pg_notify('changed', new.id || coalesce(tg_argv[0], ''));
  return null;
end $$;

create trigger api_keys_announce_change after update on api_keys
  for each row when (old.revoked_at is distinct from new.revoked_at or old.expires_at is distinct from new.expires_at)
  execute function announce_change();

create trigger organizations_announce_suspension after update on organizations
  for each row when (old.suspended is distinct from new.suspended)
  execute function announce_change();

-- The sliding window of a key: the times of its admitted requests, oldest first, and their numbers.
-- All requests of one second share the time of the last of them, so a row stays small at any limit.
create table rate_windows (
  api_key_id text primary key references api_keys,
  hits timestamptz[] not null default '{}',
  counts integer[] not null default '{}'
) with (fillfactor = 50);
-- Stores both arrays uncompressed in the row. Compressed or stored elsewhere, they double the cost
-- of each admission. PostgreSQL 15 accepts this only as a separate statement.
alter table rate_windows alter column hits set storage plain, alter column counts set storage plain;

-- Takes up to `wanted` places of a key's window.
create function take_places(
  a_key text, quota integer, span interval, wanted integer,
  out taken integer, out used integer, out free_in interval, out empty_in interval
) language plpgsql as $$
declare
  held rate_windows;
  at timestamptz;
  expired integer;
  last integer;
begin
  insert into rate_windows (api_key_id) values (a_key) on conflict do nothing;
  select * into held from rate_windows where api_key_id = a_key for update;
  -- Read under the lock, so that the times of a row never run backwards.
  at := clock_timestamp();
  -- After the clock was set back, the key must not be refused until the clock has caught up.
  if held.hits[cardinality(held.hits)] > at then
    held.hits := array(select least(hit, at) from unnest(held.hits) with ordinality h (hit, i) order by i);
    update rate_windows set hits = held.hits where api_key_id = a_key;
  end if;

  expired := width_bucket(at - span, held.hits);
  held.hits := held.hits[expired + 1:];
  held.counts := held.counts[expired + 1:];
  used := (select coalesce(sum(n), 0) from unnest(held.counts) n);
  taken := greatest(0, least(wanted, quota - used));

  if taken > 0 then
    last := cardinality(held.hits);
    if date_trunc('second', held.hits[last]) = date_trunc('second', at) then
      held.hits[last] := at;
      held.counts[last] := held.counts[last] + taken;
    else
      held.hits := held.hits || at;
      held.counts := held.counts || taken;
    end if;
    used := used + taken;
    update rate_windows set hits = held.hits, counts = held.counts where api_key_id = a_key;
  else
    free_in := (
      select min(hit) from (
        select hit, sum(n) over (order by i) as free from unnest(held.hits, held.counts) with ordinality as h (hit, n, i)
      ) freed where used - free < quota) + span - at;
  end if;
  empty_in := held.hits[cardinality(held.hits)] + span - at;
end $$;
