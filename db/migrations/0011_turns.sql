-- Who waits for a turn at a source's rate limit. In the order of tag, which goes round among organizations, and then of n.
create table source_turns (
  source text not null,
  request_id text not null,
  organization_id text not null,
  tag bigint not null,
  n bigint not null generated always as identity,
  -- When its turn is expected, and it was told to come back. Whoever never does costs one turn.
  due_at timestamptz not null,
  -- The turn is so near that it is its own: the place under the limits is taken.
  given boolean not null,
  primary key (source, request_id)
);
--> statement-breakpoint
-- What an organization spent of a day's credits; empty for what we ask on our own account.
alter table source_spend
  add column organization_id text not null default '',
  drop constraint source_spend_pkey,
  add primary key (source, day, organization_id);
--> statement-breakpoint
-- Whether a source may be called now for this request (null: on our own account), and if so, all that the call takes:
-- its place under every rate limit, the trial of an open breaker, its cost of the day's credits. Limits: per rate its
-- name, pace and burst. Calls that have something to share out are admitted one after the other.
create function admit_call(
  a_source text, a_request text, limits jsonb, daily_credits numeric, cost numeric, patience interval, trial_every interval,
  out kind text, out why text, out era integer, out at timestamptz, out free_at timestamptz
) language plpgsql as $$
declare
  asker text := coalesce(a_request, '');
  organization text := coalesce((select organization_id from requests where id = a_request), '');
  day_of_call date;
  health source_health;
  turn source_turns;
  longest interval;
  ahead integer;
  has_share boolean;
begin
  kind := 'wait';
  insert into source_health (source) values (a_source) on conflict do nothing;
  select * into health from source_health where source = a_source;
  if health.state = 'open' or limits <> '[]' or daily_credits is not null then
    select * into health from source_health where source = a_source for update;
  end if;
  at := clock_timestamp();
  day_of_call := (at at time zone 'UTC')::date;
  era := health.era;
  if health.paused_until > at then
    why := 'paused';
    free_at := health.paused_until;
    return;
  end if;
  if health.open_until > at then
    why := 'breaker_open';
    free_at := health.open_until;
    return;
  end if;
  if cost > 0 and daily_credits is not null then
    -- Half of a day's credits at most, if other organizations have asked since yesterday; its first question always.
    select coalesce(sum(credits) filter (where day = day_of_call), 0) + cost <= daily_credits
           and (coalesce(sum(credits) filter (where day = day_of_call and organization_id = organization), 0) + cost
                  <= greatest(daily_credits / 2, cost)
                or coalesce(bool_and(organization_id in (organization, '')), true))
      into has_share
      from source_spend where source = a_source and day >= day_of_call - 1;
    if not has_share then
      -- It has asked, all the same.
      insert into source_spend (source, day, organization_id) values (a_source, day_of_call, organization)
        on conflict do nothing;
      kind := 'spent';
      return;
    end if;
  end if;
  if limits <> '[]' then
    delete from source_turns t where t.source = a_source and (t.due_at < at - interval '10 s'
      or exists (select from requests r where r.id = t.request_id and r.settled_at is not null));
    select * into turn from source_turns where source = a_source and request_id = asker;
    if not found then
      -- After the others of its organization; if there are none, with the first of everybody's.
      select coalesce(greatest(max(tag) filter (where organization_id = organization) + 1, min(tag)), 0)
        into turn.tag from source_turns where source = a_source;
    end if;
    select max(pace) into longest from jsonb_to_recordset(limits) l (pace interval);
    if turn.given and turn.due_at > at - longest then
      free_at := turn.due_at;
    else
      -- One that is late by more than a turn is not waited for.
      select count(*) into ahead from source_turns t
       where t.source = a_source and not t.given and t.due_at > at - longest
         and (t.tag < turn.tag or t.tag = turn.tag and (turn.n is null or t.n < turn.n));
      -- The generic cell rate algorithm (ITU-T I.371), with those who come first.
      select max(greatest(r.due_at - (l.burst - 1) * l.pace, at) + l.pace * ahead) into free_at
        from jsonb_to_recordset(limits) l (name text, pace interval, burst integer)
             left join source_rates r on r.source = a_source and r.limit_name = l.name;
      turn.given := ahead = 0 and free_at <= least(at + interval '1 s', at + patience);
      if turn.given then
        insert into source_rates as r (source, limit_name, due_at)
          select a_source, l.name, free_at + l.pace from jsonb_to_recordset(limits) l (name text, pace interval)
          on conflict (source, limit_name) do update
            set due_at = greatest(r.due_at, free_at) + (excluded.due_at - free_at);
      end if;
    end if;
    if free_at > at then
      why := 'rate_limit';
      if free_at <= at + patience then
        insert into source_turns (source, request_id, organization_id, tag, due_at, given)
          values (a_source, asker, organization, turn.tag, free_at, turn.given)
          on conflict (source, request_id) do update set due_at = excluded.due_at, given = excluded.given;
      end if;
      return;
    end if;
    delete from source_turns where source = a_source and request_id = asker;
  end if;
  if cost > 0 then
    insert into source_spend as s (source, day, organization_id, credits)
      values (a_source, day_of_call, organization, cost)
      on conflict (source, day, organization_id) do update set credits = s.credits + excluded.credits;
  end if;
  if health.state = 'open' then
    update source_health set open_until = at + trial_every where source = a_source;
  end if;
  kind := 'go';
end $$;
