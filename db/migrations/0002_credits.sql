-- Money: an append-only ledger, and the tables derived from it.

-- A row is one movement between the four accounts of an organization. Every row sums to zero.
create table ledger_entries (
  id bigint generated always as identity,
  -- References an organization with a balance: apply_ledger_entries checks this.
  organization_id text not null,
  -- References a request of the organization. Only triggers write it: ledger_entries_follow checks
  -- this.
  request_id text,
  kind text not null check (kind in ('grant', 'adjustment', 'hold', 'charge', 'release')),
  amount bigint not null,
  -- The invoice or order of a grant. A second grant with the same reference is rejected.
  reference text,
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
  created_at timestamptz(3) not null default clock_timestamp(),
  constraint ledger_entries_balanced check (granted + available + held + used = 0),
  constraint ledger_entries_amount check (amount > 0 or (kind = 'adjustment' and amount <> 0)),
  constraint ledger_entries_request check ((request_id is not null) = (kind in ('hold', 'charge', 'release'))),
  constraint ledger_entries_reference check (reference is null or kind = 'grant' and length(reference) between 1 and 200),
  -- A request has at most one hold and at most one charge or release.
  constraint ledger_entries_once unique (request_id, side),
  primary key (organization_id, id)
);
create unique index ledger_entries_reference_once on ledger_entries (organization_id, reference)
  where reference is not null;
-- BRIN for the same reason as requests_by_settlement.
create index ledger_entries_by_time on ledger_entries using brin (created_at);
-- Finds the place of a ledger page that ends with a grant or an adjustment.
create index ledger_entries_funding on ledger_entries (organization_id, id) where side = 'funding';

create trigger ledger_entries_append_only before update or delete on ledger_entries
  for each row execute function refuse_change();

create trigger ledger_entries_no_truncate before truncate on ledger_entries
  for each statement execute function refuse_change();

-- Rejects entries with a request that a trigger did not write. Holds, charges, and releases are
-- written only by the triggers of their request, so that request and ledger never contradict each
-- other. Only operators may insert the other kinds.
create function refuse_entry() returns trigger language plpgsql as $$
begin
  raise exception 'a % follows from its request, and is not written by itself', new.kind
    using errcode = 'insufficient_privilege', constraint = 'ledger_entries_follow';
end $$;

create trigger ledger_entries_follow before insert on ledger_entries
  for each row when (new.request_id is not null and current_user <> 'npe_owner') execute function refuse_entry();

-- The sums of the ledger, maintained by a trigger. The checks make overspending impossible.
create table credit_balances (
  organization_id text primary key references organizations,
  total bigint not null default 0 check (total >= 0),
  available bigint not null default 0 constraint credit_balances_available check (available >= 0),
  held bigint not null default 0 check (held >= 0),
  used bigint not null default 0 check (used >= 0),
  constraint credit_balances_conserved check (total = available + held + used)
) with (fillfactor = 50);

create function open_credit_balance() returns trigger language plpgsql as $$
begin
  insert into credit_balances (organization_id) values (new.id);
  return null;
end $$;

create trigger organizations_open_balance after insert on organizations
  for each row execute function open_credit_balance();

-- Adds ledger entries to the balances, one organization at a time for the same reason as
-- count_settled_requests.
create function apply_ledger_entries() returns trigger language plpgsql as $$
declare
  n record;
begin
  for n in
    select organization_id, sum(granted) as granted, sum(available) as available, sum(held) as held, sum(used) as used
      from added group by organization_id
  loop
    update credit_balances b
       set total = b.total - n.granted, available = b.available + n.available,
           held = b.held + n.held, used = b.used + n.used
     where b.organization_id = n.organization_id;
    if not found then
      raise exception 'the ledger is for organizations only'
        using errcode = 'foreign_key_violation', constraint = 'ledger_entries_organization';
    end if;
  end loop;
  return null;
end $$;

create trigger ledger_entries_apply after insert on ledger_entries
  referencing new table as added for each statement execute function apply_ledger_entries();

-- The results that an organization has paid for. The conditional upsert of this row decides between
-- charge and replay.
create table entitlements (
  organization_id text not null,
  npi text collate "C" not null,
  email_type text not null check (email_type in ('professional', 'personal')),
  -- References a charged request of the organization: require_charges checks this.
  request_id text not null,
  charged_at timestamptz(3) not null,
  primary key (organization_id, npi, email_type)
);

-- Checks once per statement that each entitlement has its charge. The settings force an index
-- lookup per row and a generic plan, because a connection keeps a plan that it made while the
-- tables were empty.
create function require_charges() returns trigger language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
begin
  if exists (
    select from entitled e left join lateral (select * from requests where id = e.request_id limit 1) r on true
     where (r.organization_id, r.npi, r.email_type, r.credits_used > 0)
           is distinct from (e.organization_id, e.npi, e.email_type, true)
  ) then
    raise exception 'what entitles to an answer is a charge for it, of the same organization'
      using errcode = 'foreign_key_violation', constraint = 'entitlements_charged';
  end if;
  -- The clock may be slightly behind after a failover.
  if exists (select from entitled where charged_at > clock_timestamp() + interval '1 minute') then
    raise exception 'the charge of an entitlement is in the future' using errcode = 'check_violation', constraint = 'entitlements_charged';
  end if;
  return null;
end $$;

create trigger entitlements_charged after insert on entitlements
  referencing new table as entitled for each statement execute function require_charges();

create trigger entitlements_charged_again after update on entitlements
  referencing new table as entitled for each statement execute function require_charges();

-- The total credits that each organization had used at each full hour of the last day. It shows
-- which organizations are about to run out, without reading the ledger.
create table used_credits (
  hour timestamptz(0) not null,
  organization_id text not null,
  used bigint not null,
  primary key (hour, organization_id)
);
