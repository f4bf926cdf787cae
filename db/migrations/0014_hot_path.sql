-- What a request says of itself and what the ledger says of it are the same thing. That was looked at for each row at
-- commit; now it is once for each statement that writes either. What does not agree then, because another statement of
-- the transaction is to follow, is looked at again at commit.
drop trigger requests_settled_in_ledger on requests;
--> statement-breakpoint
drop trigger ledger_entries_match_request on ledger_entries;
--> statement-breakpoint
drop function check_request_against_ledger;
--> statement-breakpoint
-- Those of these requests that the ledger contradicts. A settlement settles a hold of its own amount: a foreign key.
create function contradicted_requests(ids text[]) returns setof requests language sql stable as $$
  select r.*
    from requests r
    left join ledger_entries hold on hold.request_id = r.id and hold.side = 'hold'
    left join ledger_entries settlement on settlement.request_id = r.id and settlement.side = 'settlement'
   where r.id = any(ids)
     and case
           when hold.id is null then not (r.status = 'completed' and r.replayed)
           else hold.amount <> r.cost or settlement.kind is distinct from
             case when r.settled_at is null then null
                  when r.status = 'completed' and not r.replayed then 'charge'
                  else 'release' end
         end
$$;
--> statement-breakpoint
-- No row of it is ever committed.
create unlogged table contradictions (request_id text primary key);
--> statement-breakpoint
create function note_contradictions(ids text[]) returns void language sql as $$
  insert into contradictions select id from contradicted_requests(ids) on conflict do nothing
$$;
--> statement-breakpoint
create function refuse_contradiction() returns trigger language plpgsql
  security definer set search_path = pg_catalog, public, pg_temp as $$
declare
  request requests;
  entries text;
begin
  delete from contradictions where request_id = new.request_id;
  select * into request from contradicted_requests(array[new.request_id]);
  if found then
    select coalesce(string_agg(kind, '+' order by id), '') into entries
      from ledger_entries where request_id = new.request_id;
    raise exception 'request % at % credits is % with ledger entries "%"', request.id, request.cost, request.status, entries
      using errcode = 'check_violation', constraint = 'requests_settled_in_ledger';
  end if;
  return null;
end $$;
--> statement-breakpoint
create constraint trigger requests_settled_in_ledger after insert on contradictions
  deferrable initially deferred for each row execute function refuse_contradiction();
--> statement-breakpoint
create or replace function apply_ledger_entries() returns trigger language plpgsql as $$
begin
  update credit_balances b
     set total = b.total - n.granted, available = b.available + n.available,
         held = b.held + n.held, used = b.used + n.used
    from (select organization_id, sum(granted) granted, sum(available) available, sum(held) held, sum(used) used
            from added group by organization_id) n
   where b.organization_id = n.organization_id;
  perform note_contradictions(array(select distinct request_id from added where request_id is not null));
  return null;
end $$;
--> statement-breakpoint
create or replace function count_settled_requests() returns trigger language plpgsql as $$
begin
  update batches b
     set completed_count = b.completed_count + n.settled, updated_at = greatest(b.updated_at, n.at)
    from (select batch_id, count(settled_at) settled, max(coalesce(settled_at, started_at, accepted_at)) at
            from changed group by batch_id) n
   where b.id = n.batch_id;
  perform note_contradictions(array(select id from changed));
  return null;
end $$;
--> statement-breakpoint
create or replace function count_newly_settled_requests() returns trigger language plpgsql as $$
begin
  update batches b
     set completed_count = b.completed_count + n.settled, updated_at = greatest(b.updated_at, n.at)
    from (select c.batch_id, count(c.settled_at) filter (where e.settled_at is null) settled,
                 max(coalesce(c.erased_at, c.settled_at, c.started_at, c.accepted_at)) at
            from changed c join earlier e on e.id = c.id group by c.batch_id) n
   where b.id = n.batch_id;
  perform note_contradictions(array(select id from changed));
  return null;
end $$;
