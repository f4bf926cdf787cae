-- Accounts: notifications about changed rows, and the rate limit of API keys.

-- Notifies the API processes that a row has changed, so that they wake the long polls that wait for
-- it. Polls also wait for changes of their API key, so that they end if the key is revoked. With
-- the argument ' final', polls that wait for the final result are woken too. The triggers announce
-- only the changes that a poll needs, because all commits with a NOTIFY wait for the same lock.
create function announce_change() returns trigger language plpgsql as $$
begin
  perform pg_notify('changed', new.id || coalesce(tg_argv[0], ''));
  return null;
end $$;

create trigger api_keys_announce_change after update on api_keys
  for each row when (old.revoked_at is distinct from new.revoked_at or old.expires_at is distinct from new.expires_at)
  execute function announce_change();

-- Only operators make an ended key valid again, or let it end later. The API may only end keys.
create function refuse_revival() returns trigger language plpgsql as $$
begin
  if not pg_has_role(current_user, 'npe_operator', 'usage') then
    raise exception 'only operators make an ended key valid again' using errcode = 'insufficient_privilege';
  end if;
  return new;
end $$;

create trigger api_keys_stay_ended before update on api_keys
  for each row when (
    (old.revoked_at is not null and new.revoked_at is distinct from old.revoked_at)
    or (old.expires_at is not null and (new.expires_at is null or new.expires_at > old.expires_at))
    or (old.leaked and not new.leaked))
  execute function refuse_revival();

create trigger organizations_announce_suspension after update on organizations
  for each row when (old.suspended is distinct from new.suspended)
  execute function announce_change();

-- Leaves half of each page free, so that a new version of a row fits in the same page. This matters
-- because each admitted request updates a row. drizzle cannot set storage parameters.
alter table rate_windows set (fillfactor = 50);
-- Stores both arrays uncompressed in the row. If they were compressed or stored outside the row,
-- each admission would cost twice as much. PostgreSQL 15 accepts this only as a separate statement.
alter table rate_windows alter column hits set storage plain, alter column counts set storage plain;

-- Admits up to `wanted` requests of an API key, so that at most `quota` requests are admitted
-- within any period of `span`.
--
-- taken: the number of admitted requests. used: the number of requests in the current window.
-- free_in: the time until the next request can be admitted, if none was. empty_in: the time until
-- the window is empty.
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
  -- The time is read after the row is locked, so that the times in the row are in ascending order.
  at := clock_timestamp();
  -- If the clock was set back, the row contains times in the future. They are replaced by the
  -- current time. Otherwise the key would be rejected until the clock has caught up.
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
