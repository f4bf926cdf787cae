-- Accounts: announcements of changes, and the rate limit of a key.

-- Wakes the polls that wait for a change of this row or use this key, so that a revoked key ends
-- its polls. With the argument ' final' it also wakes the polls that wait for the end. Changes that
-- no poll waits for are not announced, because commits with a NOTIFY queue for one lock.
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

-- Leaves space for updates within a page, because each admission updates its row. drizzle has no
-- storage parameters.
alter table rate_windows set (fillfactor = 50);
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
