-- Money: a ledger that is only ever added to, and what follows from it.

-- One row per movement between the four accounts of an organization; every row sums to zero by itself.
create table ledger_entries (
  id bigint primary key generated always as identity,
  -- One that is there, as its balance: apply_ledger_entries.
  organization_id text not null,
  -- One of the organization's: contradicted_requests.
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
  created_at timestamptz(3) not null default clock_timestamp(),
  constraint ledger_entries_balanced check (granted + available + held + used = 0),
  constraint ledger_entries_amount check (amount > 0 or (kind = 'adjustment' and amount <> 0)),
  constraint ledger_entries_request check ((request_id is not null) = (kind in ('hold', 'charge', 'release'))),
  -- One hold and at most one charge or release per request.
  constraint ledger_entries_once unique (request_id, side)
);
create index ledger_entries_by_organization on ledger_entries (organization_id, id);
-- As requests_by_settlement.
create index ledger_entries_by_time on ledger_entries using brin (created_at);

create trigger ledger_entries_append_only before update or delete on ledger_entries
  for each row execute function refuse_change();

create trigger ledger_entries_no_truncate before truncate on ledger_entries
  for each statement execute function refuse_change();

-- Only operators bring credits into the world; everybody else moves those that are there.
create function require_operator() returns trigger language plpgsql as $$
begin
  if not pg_has_role('npe_operator', 'usage') then
    raise exception 'only an operator grants or adjusts credits' using errcode = 'insufficient_privilege';
  end if;
  return new;
end $$;

create trigger ledger_entries_funded_by_operators before insert on ledger_entries
  for each row when (new.kind in ('grant', 'adjustment')) execute function require_operator();

-- What the ledger adds up to, kept by a trigger; its checks are what makes overspending impossible.
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

create function apply_ledger_entries() returns trigger language plpgsql as $$
declare
  applied integer;
begin
  update credit_balances b
     set total = b.total - n.granted, available = b.available + n.available,
         held = b.held + n.held, used = b.used + n.used
    from (select organization_id, sum(granted) granted, sum(available) available, sum(held) held, sum(used) used
            from added group by organization_id) n
   where b.organization_id = n.organization_id;
  get diagnostics applied = row_count;
  if applied < (select count(distinct organization_id) from added) then
    raise exception 'the ledger is for organizations only'
      using errcode = 'foreign_key_violation', constraint = 'ledger_entries_organization';
  end if;
  perform note_contradictions(array(select distinct request_id from added where request_id is not null));
  return null;
end $$;

create trigger ledger_entries_apply after insert on ledger_entries
  referencing new table as added for each statement execute function apply_ledger_entries();

-- What a request says of itself and what the ledger says of it are the same thing. That is looked at once for each
-- statement that writes either. What does not agree then, because another statement of the transaction is to follow, is
-- looked at again at commit.

-- Those of these requests that the ledger contradicts, or that it alone knows: what is held and what settles it is the
-- request's price, of its organization. `limit` keeps the planner from joining with whole tables.
create function contradicted_requests(ids text[]) returns setof text language sql stable as $$
  select one.id
    from unnest(ids) one (id)
    left join lateral (select * from requests where id = one.id limit 1) r on true
    left join lateral (select * from ledger_entries where request_id = one.id and side = 'hold' limit 1) hold on true
    left join lateral (select * from ledger_entries where request_id = one.id and side = 'settlement' limit 1) settlement on true
   where case
           when r.id is null or r.organization_id <> hold.organization_id
             or r.organization_id <> settlement.organization_id then true
           when hold.id is null then settlement.id is not null or not (r.status = 'completed' and r.replayed)
           else hold.amount <> r.cost or settlement.amount <> r.cost or settlement.kind is distinct from
             case when r.settled_at is null then null
                  when r.status = 'completed' and not r.replayed then 'charge'
                  else 'release' end
         end
$$;

-- No row of it is ever committed.
create unlogged table contradictions (request_id text primary key);

-- One by one and by the indexes, by one plan: a connection keeps what it plans while the tables are empty, and a plan for
-- each call costs more than all the rest of a settlement.
create function note_contradictions(ids text[]) returns void language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
begin
  insert into contradictions select * from contradicted_requests(ids) on conflict do nothing;
end $$;

create function refuse_contradiction() returns trigger language plpgsql as $$
declare
  request requests;
  entries text;
begin
  delete from contradictions where request_id = new.request_id;
  if exists (select from contradicted_requests(array[new.request_id])) then
    select * into request from requests where id = new.request_id;
    select coalesce(string_agg(kind, '+' order by id), '') into entries
      from ledger_entries where request_id = new.request_id;
    raise exception 'request % at % credits is % with ledger entries "%"', new.request_id, request.cost, request.status, entries
      using errcode = 'check_violation', constraint = 'requests_settled_in_ledger';
  end if;
  return null;
end $$;

create constraint trigger requests_settled_in_ledger after insert on contradictions
  deferrable initially deferred for each row execute function refuse_contradiction();

-- What an organization has paid for: the row whose conditional upsert decides between charge and replay.
create table entitlements (
  organization_id text not null,
  npi text collate "C" not null,
  email_type text not null check (email_type in ('professional', 'personal')),
  request_id text not null,
  charged_at timestamptz(3) not null,
  primary key (organization_id, npi, email_type),
  foreign key (request_id, organization_id) references requests (id, organization_id)
);

-- What each organization had used at each full hour of the last day: who is about to run out follows from it, without a
-- look at the ledger.
create table used_credits (
  hour timestamptz(0) not null,
  organization_id text not null,
  used bigint not null,
  primary key (hour, organization_id)
);
