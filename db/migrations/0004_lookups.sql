-- What is asked of whom, what each answer was worth, and what is kept of it.

-- One row per question put to a vendor. Written before the call, so that a crash leaves a trace of it.
create table vendor_attempts (
  lookup_id text not null references lookups,
  vendor text not null,
  n smallint not null,
  -- Whose workflow asked; every request of the lookup has the answer.
  request_id text not null references requests,
  state text not null check (state in ('submitting', 'pending', 'found', 'miss', 'skip', 'blocked', 'retry', 'fatal', 'lost')),
  job_ref text,
  reason text,
  -- Until when whoever is asking may be assumed alive.
  lease_until timestamptz(3),
  polls integer not null default 0,
  -- What the vendor charges for, in its own credits; set aside at submit, corrected by the answer.
  credits numeric(12, 3) not null default 0 check (credits >= 0),
  candidates smallint not null default 0,
  -- Whether a client was answered with an address that it named.
  returned boolean not null default false,
  started_at timestamptz(3) not null,
  ended_at timestamptz(3),
  primary key (lookup_id, vendor, n),
  check ((ended_at is null) = (state in ('submitting', 'pending'))),
  check (state <> 'pending' or job_ref is not null)
);
-- At most one question per lookup and vendor is open at a time, whoever asks it.
create unique index vendor_attempts_open on vendor_attempts (lookup_id, vendor) where ended_at is null;
create index vendor_attempts_by_time on vendor_attempts (started_at);

-- The health of everything that is called for money or under a limit: vendors, verifiers, the NPI registry.
create table source_health (
  source text primary key,
  state text not null default 'closed' check (state in ('closed', 'open')),
  failures integer not null default 0,
  -- Ends with each opening and each closing of the breaker: how a call goes that was let through in an earlier era says
  -- nothing new.
  era integer not null default 0,
  -- While open: when the next trial call may be made.
  open_until timestamptz(3),
  -- The source's own word (Retry-After): nobody asks before.
  paused_until timestamptz(3),
  last_error text
);

-- Global rate limits (GCRA, one row per limit): when the next call would be due at an even pace.
create table source_rates (
  source text not null,
  limit_name text not null,
  due_at timestamptz not null,
  primary key (source, limit_name)
) with (fillfactor = 50);

-- Who waits for a turn at a source's rate limit. In the order of tag, which goes round among organizations, and then of n.
create table source_turns (
  source text not null,
  request_id text not null,
  organization_id text not null check (not is_sandbox(organization_id)),
  tag bigint not null,
  n bigint not null generated always as identity,
  -- When its turn is expected, and it was told to come back. Whoever never does costs one turn.
  due_at timestamptz not null,
  -- The turn is so near that it is its own: the place under the limits is taken.
  given boolean not null,
  primary key (source, request_id)
);

-- What a source has cost on a day (UTC).
create table source_spend (
  source text not null,
  day date not null,
  -- Whose requests they were spent on; empty for what we ask on our own account.
  organization_id text not null default '' check (not is_sandbox(organization_id)),
  credits numeric(14, 3) not null default 0 check (credits >= 0),
  primary key (source, day, organization_id)
) with (fillfactor = 50);
create index source_spend_by_age on source_spend (day);

-- Whether an organization has something left of a source's credits of a day: half of them at most, if others have asked
-- since yesterday; its first question always.
create function has_share(a_source text, organization text, on_day date, cost numeric, daily_credits numeric)
returns boolean language sql stable as $$
  select cost = 0 or daily_credits is null or (
    select coalesce(sum(credits) filter (where day = on_day), 0) + cost <= daily_credits
           and (coalesce(sum(credits) filter (where day = on_day and organization_id = organization), 0) + cost
                  <= greatest(daily_credits / 2, cost)
                or coalesce(bool_and(organization_id in (organization, '')), true))
      from source_spend where source = a_source and day >= on_day - 1)
$$;

-- Whether a source may be called now for this request (null: on our own account), and if so, all that the call takes:
-- its place under every rate limit, the trial of an open breaker, its cost of the day's credits. Limits: per rate its
-- name, pace and burst. Backing: other sources, with cost and daily credits; unless one of them can be asked, if there
-- are any, the call would be of no use. Calls that have something to share out are admitted one after the other.
create function admit_call(
  a_source text, a_request text, limits jsonb, daily_credits numeric, cost numeric, patience interval, trial_every interval,
  backing jsonb,
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
  if backing <> '[]' and not exists (
    select from jsonb_to_recordset(backing) b (source text, cost numeric, "dailyCredits" numeric)
           left join source_health h using (source)
     where coalesce(h.state = 'closed' and coalesce(h.paused_until <= at, true), true)
       and has_share(b.source, organization, day_of_call, b.cost, b."dailyCredits")) then
    why := 'backing_away';
    free_at := at;
    return;
  end if;
  if not has_share(a_source, organization, day_of_call, cost, daily_credits) then
    -- It has asked, all the same.
    insert into source_spend (source, day, organization_id) values (a_source, day_of_call, organization)
      on conflict do nothing;
    kind := 'spent';
    return;
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
    -- A turn is kept for at least two seconds: on a busy machine its owner comes late, and a lost turn slows the source.
    select greatest(max(pace), interval '2 s') into longest from jsonb_to_recordset(limits) l (pace interval);
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
      -- Who has no time left takes a turn that is free, and no other.
      turn.given := ahead = 0 and free_at <= least(at + interval '1 s', at + greatest(patience, interval '0'));
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

-- The directory: every address a vendor ever named for an NPI, with the newest verdict on it and where it came from.
create table stored_emails (
  npi text collate "C" not null check (npi ~ '^[0-9]{10}$'),
  email text not null,
  email_type text check (email_type in ('professional', 'personal')),
  verdict text not null check (verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')),
  reason text,
  last_validated_at timestamptz(3),
  source text not null,
  -- Set while the candidate waits for our own checks.
  unchecked boolean not null default false,
  -- While somebody checks it, or a mail server has asked to come back: nobody else is paid for the same check.
  checking_until timestamptz(3),
  -- The request for which it was last taken to be checked.
  checking_for text,
  -- Whether all that says whose it is repeats our question.
  is_echo boolean not null default false,
  -- False where the source's licence lets us answer with an address but not keep it: it serves its own lookup alone.
  may_store boolean not null default true,
  first_seen_at timestamptz(3) not null default clock_timestamp(),
  updated_at timestamptz(3) not null default clock_timestamp(),
  primary key (npi, email),
  constraint stored_emails_valid_is_complete check (
    verdict <> 'valid' or unchecked or (email_type is not null and last_validated_at is not null)
  )
);
create index stored_emails_going_stale on stored_emails (last_validated_at) where verdict = 'valid' and not unchecked;
create index stored_emails_not_kept on stored_emails (updated_at) where not may_store;
-- A person who wants to be erased names an address, not an NPI.
create index stored_emails_by_email on stored_emails (email);

-- Every judgement ever made of an address: who named it, which check rejected or accepted it, and why.
create table email_checks (
  id bigint primary key generated always as identity,
  npi text collate "C" not null,
  email text not null,
  lookup_id text references lookups,
  -- named: a source proposed it; identity, local: our own checks; verifier: a mailbox check; verdict: what came of all.
  kind text not null check (kind in ('named', 'identity', 'local', 'verifier', 'verdict')),
  -- Vendor, verifier or `nppes`; ours is `service`.
  source text not null,
  verdict text not null check (verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')),
  reason text,
  duration_ms integer,
  at timestamptz(3) not null default clock_timestamp()
);
create index email_checks_by_npi on email_checks (npi, email, id);
create index email_checks_by_lookup on email_checks (lookup_id) where lookup_id is not null;
create index email_checks_by_email on email_checks (email);
-- How verifiers do, as vendor_attempts_by_time tells of vendors.
create index email_checks_by_verifier on email_checks (at) where kind = 'verifier';

-- Closes the lookups of requests that were just settled: each that has its answer, or that the last which waited for it
-- has given up, and notes whose answer it is. Part of the settling transaction, and its last locks. Planned once, and by
-- indexes only: a plan for lists of any length is thought to be worse than one for each, so that each call was planned
-- anew; and one that was made while the tables were small went on to read all of them.
create function close_lookups(request_ids text[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  theirs text[] := array(select lookup_id from requests where id = any(request_ids));
begin
  -- A statement of its own: if two requests give up at once, the second must see that the first has. In one order,
  -- because organizations share lookups.
  perform from lookups where id = any(theirs) order by npi, wanted_type for no key update;
  update vendor_attempts a set returned = true
    from requests r join email_checks c on (c.lookup_id, c.npi, c.email) = (r.lookup_id, r.npi, r.email)
   where r.lookup_id = any(theirs) and r.status = 'completed' and c.kind = 'named'
     and a.lookup_id = r.lookup_id and a.vendor = c.source and a.state = 'found' and a.reason is null and not a.returned;
  update lookups l set closed_at = r.settled_at from requests r
   where r.id = any(request_ids) and l.id = r.lookup_id and l.closed_at is null
     and (r.status <> 'failed' or not exists (
       select from requests other where other.lookup_id = l.id and other.settled_at is null));
end $$;
