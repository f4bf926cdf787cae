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
--> statement-breakpoint
-- A window counts by steps: when the places of a step are free again is one time for all of them.
alter table rate_windows
  alter column hits set default '{}',
  add column counts integer[] not null default '{}',
  drop column admitted;
--> statement-breakpoint
update rate_windows set counts = array_fill(1, array[cardinality(hits)]);
--> statement-breakpoint
-- Takes up to so many places of a key's window, and first gives back those taken at `unused_at` that nobody used. Places
-- of a step may be used until its end, which is the time they count from; without steps they count from now.
create function take_places(
  a_key text, quota integer, span interval, step interval, wanted integer, unused integer, unused_at timestamptz,
  out taken integer, out used integer, out taken_at timestamptz, out free_in interval, out empty_in interval
) language plpgsql as $$
declare
  held rate_windows;
  at timestamptz;
  gone integer;
  place integer;
begin
  insert into rate_windows (api_key_id) values (a_key) on conflict do nothing;
  select * into held from rate_windows where api_key_id = a_key for update;
  -- Under the lock, so that the times of a row never run backwards.
  at := clock_timestamp();
  gone := width_bucket(at - span, held.hits);
  held.hits := held.hits[gone + 1:];
  held.counts := held.counts[gone + 1:];
  place := array_position(held.hits, unused_at);
  if place is not null then
    held.counts[place] := held.counts[place] - unused;
  end if;
  used := (select coalesce(sum(n), 0) from unnest(held.counts) n);
  taken := greatest(0, least(wanted, quota - used));
  if taken > 0 then
    place := cardinality(held.hits);
    taken_at := case when step > '0' then date_bin(step, at, 'epoch') + 2 * step else at end;
    if taken_at <= held.hits[place] then
      taken_at := held.hits[place];
      held.counts[place] := held.counts[place] + taken;
    else
      held.hits := held.hits || taken_at;
      held.counts := held.counts || taken;
    end if;
    used := used + taken;
    update rate_windows set hits = held.hits, counts = held.counts where api_key_id = a_key;
  end if;
  free_in := (
    select min(hit) from (
      select hit, sum(n) over (order by i) as free from unnest(held.hits, held.counts) with ordinality as h (hit, n, i)
    ) freed where used - free < quota) + span - at;
  empty_in := held.hits[cardinality(held.hits)] + span - at;
end $$;
--> statement-breakpoint
-- How often suppressions have changed: an answer that is asked for again is the same only if they have not.
create table suppression_changes (
  one boolean primary key default true check (one),
  n bigint not null
);
--> statement-breakpoint
insert into suppression_changes (n) values (0);
--> statement-breakpoint
create function count_suppression_change() returns trigger language plpgsql
  security definer set search_path = pg_catalog, public, pg_temp as $$
begin
  update suppression_changes set n = n + 1;
  return null;
end $$;
--> statement-breakpoint
create trigger suppressions_count_change after insert or update or delete or truncate on suppressions
  for each statement execute function count_suppression_change();
