-- Credits: triggers that protect the append-only ledger and the tables derived from it.

create trigger ledger_entries_append_only before update or delete on ledger_entries
  for each row when (not is_sandbox(old.organization_id) or current_user <> 'npe_owner')
  execute function refuse_change();

create trigger ledger_entries_no_truncate before truncate on ledger_entries
  for each statement execute function refuse_change();

-- Rejects a hold, charge, or release that was not inserted by a trigger on requests, so that
-- requests and ledger never contradict each other. The triggers run as the user npe_owner. Grants
-- and adjustments have no request and are inserted by operators.
create function refuse_entry() returns trigger language plpgsql as $$
begin
  raise exception 'a % is written only by the triggers of requests', new.kind
    using errcode = 'insufficient_privilege', constraint = 'ledger_entries_follow';
end $$;

create trigger ledger_entries_follow before insert on ledger_entries
  for each row when (new.request_id is not null and current_user <> 'npe_owner') execute function refuse_entry();

-- Leaves half of each page free for updates, as for rate_windows (0002_accounts.sql).
alter table credit_balances set (fillfactor = 50);

create function open_credit_balance() returns trigger language plpgsql as $$
begin
  insert into credit_balances (organization_id) values (new.id);
  return null;
end $$;

create trigger organizations_open_balance after insert on organizations
  for each row execute function open_credit_balance();

-- Makes the sandbox of an open organization, with 10,000 play credits. The API may call this
-- function, but may neither insert organizations nor grant credits. An organization has at most one
-- sandbox (organizations_sandbox_of_key), so a second call fails.
create function open_sandbox(owner text, sandbox text, secret text) returns integer language plpgsql as $$
declare
  credits constant integer := 10000;
begin
  insert into organizations (id, sandbox_of, name, webhook_secret, suspended, webhooks_suspended)
  select sandbox, o.id, o.name, secret, o.suspended, o.webhooks_suspended
    from organizations o
   where o.id = owner and o.closed_at is null;
  if not found then
    raise exception 'no open organization %', owner using errcode = 'insufficient_privilege';
  end if;
  insert into ledger_entries (organization_id, kind, amount) values (sandbox, 'grant', credits);
  return credits;
end $$;

-- Adds new ledger entries to the balances. The loop updates one organization at a time, for the
-- same reason as in count_settled_requests (0003_requests.sql).
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
      raise exception 'a ledger entry must belong to an existing organization'
        using errcode = 'foreign_key_violation', constraint = 'ledger_entries_organization';
    end if;
  end loop;
  return null;
end $$;

create trigger ledger_entries_apply after insert on ledger_entries
  referencing new table as added for each statement execute function apply_ledger_entries();

-- Checks once per statement that each inserted or updated entitlement has a charged request. The
-- settings force an index lookup per row. Otherwise a connection that made its plan while the
-- tables were empty would read whole tables, even after the tables have grown.
create function require_charges() returns trigger language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
begin
  if exists (
    select from entitled e left join lateral (select * from requests where id = e.request_id limit 1) r on true
     where (r.organization_id, r.npi, r.email_type, r.credits_used > 0)
           is distinct from (e.organization_id, e.npi, e.email_type, true)
  ) then
    raise exception 'an entitlement must have a charge for the same organization, NPI, and type'
      using errcode = 'foreign_key_violation', constraint = 'entitlements_charged';
  end if;
  -- One minute is tolerated, because the clock may be slightly behind after a failover.
  if exists (select from entitled where charged_at > clock_timestamp() + interval '1 minute') then
    raise exception 'an entitlement must not be dated in the future' using errcode = 'check_violation', constraint = 'entitlements_charged';
  end if;
  return null;
end $$;

create trigger entitlements_charged after insert on entitlements
  referencing new table as entitled for each statement execute function require_charges();

create trigger entitlements_charged_again after update on entitlements
  referencing new table as entitled for each statement execute function require_charges();

-- Leaves half of each page free for updates, as for rate_windows (0002_accounts.sql).
alter table daily_usage set (fillfactor = 50);

-- Adds the requests that became final in this statement to the sums of their day. An erased request
-- was already final, so it is not added again. Rows are locked in the order of their keys, so that
-- two statements cannot deadlock.
create function sum_settled_requests() returns trigger language plpgsql as $$
begin
  insert into daily_usage as d (
    organization_id, day, requested_type, found, replayed, not_found, failed, credits_charged)
  select organization_id, (settled_at at time zone 'UTC')::date, requested_type,
         count(*) filter (where credits_used > 0), count(*) filter (where replayed),
         count(*) filter (where status = 'not_found'), count(*) filter (where status = 'failed'), sum(credits_used)
    from changed
   where settled_at is not null and erased_at is null
   group by 1, 2, 3
   order by 1, 2, 3
      on conflict (organization_id, day, requested_type) do update
     set found = d.found + excluded.found, replayed = d.replayed + excluded.replayed,
         not_found = d.not_found + excluded.not_found, failed = d.failed + excluded.failed,
         credits_charged = d.credits_charged + excluded.credits_charged;
  return null;
end $$;

create trigger requests_sum_inserted after insert on requests
  referencing new table as changed for each statement execute function sum_settled_requests();

create trigger requests_sum_updated after update on requests
  referencing new table as changed for each statement execute function sum_settled_requests();

-- Deletes the oldest completed batches of one sandbox with all that belongs to them, if they are older
-- than the given age and than 30 days. Returns how many it deleted.
--
-- The credits that the deleted charges used become a negative adjustment. So the ledger still sums to
-- the balance: the available credits stay, and the total and the used credits shrink by the same
-- amount. The adjustment replaces the last deleted hold, and earlier negative adjustments are merged
-- into it. The oldest batches are deleted first, so all holds that stay come after it.
create function forget_sandbox(age interval, at_most integer) returns integer language plpgsql as $$
declare
  before timestamptz := clock_timestamp() - greatest(age, interval '30 days');
  sandbox text;
  batch_ids text[];
  request_ids text[];
  spent bigint;
  merged bigint;
  hold_id bigint;
  hold_at timestamptz;
begin
  select o.id into sandbox
    from organizations o
   cross join lateral (
     select created_at from batches
      where organization_id = o.id and created_at < before and status = 'completed'
      order by created_at limit 1
   ) oldest
   where o.sandbox_of is not null
   order by oldest.created_at limit 1;
  if sandbox is null then
    return 0;
  end if;
  perform from credit_balances where organization_id = sandbox for update;
  batch_ids := array(
    select id from batches
     where organization_id = sandbox and created_at < before and status = 'completed'
     order by created_at limit at_most);
  request_ids := array(select id from requests where batch_id = any(batch_ids));
  delete from webhook_attempts
   where delivery_id in (select id from webhook_deliveries where batch_id = any(batch_ids));
  delete from webhook_deliveries where batch_id = any(batch_ids);
  delete from uploads where id in (select upload_id from upload_parts where batch_id = any(batch_ids));
  delete from entitlements e using requests r
   where r.id = any(request_ids)
     and (e.organization_id, e.npi, e.request_id) = (r.organization_id, r.npi, r.id);
  with deleted as (
    delete from ledger_entries where request_id = any(request_ids) returning id, kind, amount, created_at
  )
  select coalesce(sum(amount) filter (where kind = 'charge'), 0),
         max(id) filter (where kind = 'hold'), max(created_at) filter (where kind = 'hold')
    into spent, hold_id, hold_at
    from deleted;
  if spent > 0 then
    with deleted as (
      delete from ledger_entries
       where organization_id = sandbox and side = 'funding' and kind = 'adjustment' and amount < 0
         and id < hold_id
      returning amount
    )
    select coalesce(-sum(amount), 0) into merged from deleted;
    -- The trigger of the ledger subtracts the adjustment from the total and the available credits.
    update credit_balances
       set total = total + merged, available = available + merged + spent, used = used - spent
     where organization_id = sandbox;
    insert into ledger_entries (id, organization_id, kind, amount, created_at) overriding system value
    values (hold_id, sandbox, 'adjustment', - merged - spent, hold_at);
  end if;
  delete from requests where id = any(request_ids);
  delete from batches where id = any(batch_ids);
  return cardinality(batch_ids);
end $$;
