-- A request's price is written on its row when it is submitted, so that a new price changes no past request.
alter table requests alter column cost drop expression;
--> statement-breakpoint
alter table requests add constraint requests_cost_positive check (cost > 0);
--> statement-breakpoint
alter table requests drop column credits_used;
--> statement-breakpoint
alter table requests add column credits_used smallint not null generated always as (
  case when status = 'completed' and not replayed then cost else 0 end
) stored;
--> statement-breakpoint
create or replace function guard_request_state() returns trigger language plpgsql as $$
begin
  if new.cost <> old.cost then
    raise exception 'the price of request % does not change', old.id
      using errcode = 'restrict_violation', constraint = 'requests_price_kept';
  end if;
  if old.settled_at is not null then
    -- Final but for one change: the erasure of the address. Generated columns are not computed yet; they follow the rest.
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
--> statement-breakpoint
-- As before, and the amounts are the request's own price.
create or replace function check_request_against_ledger() returns trigger language plpgsql as $$
declare
  id_to_check text := case when tg_table_name = 'requests' then to_jsonb(new) ->> 'id' else to_jsonb(new) ->> 'request_id' end;
  request requests;
  entries text;
  at_its_price boolean;
begin
  select * into request from requests where id = id_to_check;
  select coalesce(string_agg(kind, '+' order by id), ''), coalesce(bool_and(amount = request.cost), true)
    into entries, at_its_price from ledger_entries where request_id = id_to_check;
  if at_its_price and (case
        when request.settled_at is null then entries = 'hold'
        when request.status = 'completed' and not request.replayed then entries = 'hold+charge'
        when request.status = 'completed' then entries in ('', 'hold+release')
        else entries = 'hold+release'
      end) then
    return null;
  end if;
  raise exception 'request % at % credits is % with ledger entries "%"', id_to_check, request.cost, request.status, entries
    using errcode = 'check_violation', constraint = 'requests_settled_in_ledger';
end $$;
