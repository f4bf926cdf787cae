-- Requests: triggers that guard their states, count them in their batches, and add ledger entries.

create function refuse_change() returns trigger language plpgsql as $$
begin
  raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;

-- The trigger of requests checks only at insert that a request belongs to a batch of its
-- organization. The ids and organizations must therefore not change later. Only forget_sandbox, which
-- runs as the user npe_owner, deletes rows of sandboxes.
create trigger batches_kept before delete or update of id, organization_id on batches
  for each row when (not is_sandbox(old.organization_id) or current_user <> 'npe_owner')
  execute function refuse_change();

create trigger requests_kept before delete or update of id, batch_id, organization_id on requests
  for each row when (not is_sandbox(old.organization_id) or current_user <> 'npe_owner')
  execute function refuse_change();

-- Rejects a submit that was authenticated before its organization was closed.
create function refuse_closed_organization() returns trigger language plpgsql as $$
begin
  if exists (select from organizations where id = new.organization_id and closed_at is not null) then
    raise exception 'organization % is closed', new.organization_id
      using errcode = 'check_violation', constraint = 'batches_of_open_organization';
  end if;
  return new;
end $$;

create trigger batches_of_open_organization before insert on batches
  for each row execute function refuse_closed_organization();

create function guard_request_state() returns trigger language plpgsql as $$
begin
  if new.cost <> old.cost then
    raise exception 'the price of request % does not change', old.id
      using errcode = 'restrict_violation', constraint = 'requests_price_kept';
  end if;
  if old.settled_at is not null then
    -- The only allowed change of a final request is the erasure of its email. The generated column
    -- credits_used is not compared, because a trigger that runs before the update does not see its
    -- new value yet.
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

-- Counts inserted requests in their batches, and adds their holds to the ledger. For a request that
-- is already completed, it also adds the charge. The loop updates one batch at a time by its id.
-- One statement that joins batches with the inserted rows would be slow, because the planner would
-- expect hundreds of rows and read all batches.
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
      raise exception 'a request and its batch must have the same organization'
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

-- Counts the requests that became final in this statement, notifies waiting polls, and adds charges
-- and releases to the ledger. A request whose email is erased was already final, so it is not
-- counted again.
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
