-- What is asked of whom, what each answer was worth, and what is kept of it.

-- One row per question put to a vendor. Written before the call, so that a crash leaves a trace of
-- it.
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
  -- How long the call waited for its slot under the vendor's rate limits.
  waited_ms integer not null default 0,
  started_at timestamptz(3) not null,
  ended_at timestamptz(3),
  primary key (lookup_id, vendor, n),
  check ((ended_at is null) = (state in ('submitting', 'pending'))),
  check (state <> 'pending' or job_ref is not null)
);
-- At most one question per lookup and vendor is open at a time, whoever asks it.
create unique index vendor_attempts_open on vendor_attempts (lookup_id, vendor) where ended_at is null;
create index vendor_attempts_by_time on vendor_attempts (started_at);

-- The health of everything that is called for money or under a limit: vendors, verifiers, the NPI
-- registry.
create table source_health (
  source text primary key,
  state text not null default 'closed' check (state in ('closed', 'open')),
  failures integer not null default 0,
  -- Ends with each opening and each closing of the breaker: how a call goes that was let through in
  -- an earlier era says nothing new.
  era integer not null default 0,
  -- While open: when the next trial call may be made.
  open_until timestamptz(3),
  -- The source's own word (Retry-After): nobody asks before.
  paused_until timestamptz(3),
  last_error text
);

-- When each rate limit of a source allows its next call. One row per limit.
create table source_rates (
  source text not null,
  limit_name text not null,
  next_at timestamptz not null,
  primary key (source, limit_name)
) with (fillfactor = 50);

-- Requests that wait for a slot under a source's rate limits, in the order of round and n (see
-- next_slot).
create table source_slots (
  source text not null,
  request_id text not null,
  organization_id text not null check (not is_sandbox(organization_id)),
  round bigint not null,
  n bigint not null generated always as identity,
  -- When the request first asked for a slot.
  asked_at timestamptz(3) not null,
  -- The moment of the call if the slot is reserved, or else the moment that is expected.
  slot_at timestamptz(3) not null,
  is_reserved boolean not null,
  primary key (source, request_id)
);
create index source_slots_by_request on source_slots (request_id);

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

-- Is the source closed to calls, by its own word (Retry-After) or because its breaker is open? Null
-- if it is open to calls.
create function closed_until(health source_health, at timestamptz, out why text, out until timestamptz)
language sql immutable as $$
  select why, until
    from (values (1, 'paused', health.paused_until), (2, 'breaker_open', health.open_until)) reason (rank, why, until)
   where until > at
   order by rank limit 1
$$;

-- Does an organization have budget left of a source's credits of a day? It has at most half of them
-- if other organizations asked the source since yesterday. Its first call is always within the
-- budget.
create function has_budget(a_source text, organization text, on_day date, cost numeric, daily_credits numeric)
returns boolean language sql stable as $$
  select cost = 0 or daily_credits is null or (
    select coalesce(sum(credits) filter (where day = on_day), 0) + cost <= daily_credits
           and (coalesce(sum(credits) filter (where day = on_day and organization_id = organization), 0) + cost
                  <= greatest(daily_credits / 2, cost)
                or coalesce(bool_and(organization_id in (organization, '')), true))
      from source_spend where source = a_source and day >= on_day - 1)
$$;

-- Can one of the required verifiers be called? Each comes with its source, cost, and dailyCredits.
-- True for an empty list.
create function has_verifier(verifiers jsonb, organization text, on_day date, at timestamptz)
returns boolean language sql stable as $$
  select verifiers = '[]' or exists (
    select from jsonb_to_recordset(verifiers) v (source text, cost numeric, "dailyCredits" numeric)
           left join source_health h using (source)
     where coalesce(h.state, 'closed') = 'closed' and coalesce(h.paused_until <= at, true)
       and has_budget(v.source, organization, on_day, v.cost, v."dailyCredits"))
$$;

-- When is the next slot of a request under the rate limits of a source?
--
-- The problem: a source allows 5 calls a second, and 300 lookups of several organizations want to
-- call it. Every slot must be used, none twice, and no organization may wait behind all the lookups
-- of another one. Reserving a moment for each of the 300 at once is exact, but a second
-- organization would wait for a minute. Reserving only for the first in line loses the slots of
-- owners that come late: a source at 5/s was called 1.7 times a second. So a slot is reserved when
-- it is less than 5 s away. Its owner waits for it inside its activity and keeps it. All others are
-- told the moment they can expect, and come back 2 s before it. They are ordered by round: the
-- first waiting request of each organization, then the second of each, and so on. Whoever comes
-- back first takes the next free slot, so that a late owner delays nobody. An owner that is over 2
-- s late gets the next free slot as well: a worker that stood still must not call in a burst. With
-- 300 waiting, a source at 5/s is called 4.86 times a second, and a lookup takes 1.9 attempts
-- (test/bench/slots.ts). Our pace is 3 % slower than the limit, because calls leave some
-- milliseconds late.
--
-- limits: per limit its name and pace, the time between two calls. latest: no slot after it is of
-- use.
create function next_slot(
  a_source text, asker text, organization text, limits jsonb, latest timestamptz, at timestamptz,
  out slot_at timestamptz, out is_reserved boolean
) language plpgsql as $$
declare
  late constant timestamptz := at - interval '2 s';
  mine source_slots;
  ahead integer;
begin
  delete from source_slots s where s.source = a_source and s.slot_at < at - interval '10 s';
  select * into mine from source_slots s where s.source = a_source and s.request_id = asker;
  if mine.is_reserved and mine.slot_at > late then
    slot_at := mine.slot_at;
    is_reserved := true;
    return;
  end if;
  if mine.round is null then
    -- After the others of its organization. If there are none, in the round that is served now.
    select greatest(0, min(s.round) filter (where s.slot_at > late), max(s.round) filter (where s.organization_id = organization) + 1)
      into mine.round from source_slots s where s.source = a_source;
  end if;
  select count(*) into ahead from source_slots s
   where s.source = a_source and not s.is_reserved and s.slot_at > late
     and (s.round < mine.round or s.round = mine.round and (mine.n is null or s.n < mine.n));
  select max(greatest(r.next_at, at)), max(greatest(r.next_at, at) + l.pace * ahead)
    into slot_at, mine.slot_at
    from jsonb_to_recordset(limits) l (name text, pace interval)
         left join source_rates r on r.source = a_source and r.limit_name = l.name;
  is_reserved := mine.slot_at <= at + interval '5 s' and slot_at <= latest;
  if is_reserved then
    -- The generic cell rate algorithm (ITU-T I.371) without a burst.
    insert into source_rates (source, limit_name, next_at)
    select a_source, l.name, slot_at + l.pace from jsonb_to_recordset(limits) l (name text, pace interval)
        on conflict (source, limit_name) do update set next_at = excluded.next_at;
  else
    slot_at := mine.slot_at;
  end if;
  if slot_at <= latest then
    insert into source_slots (source, request_id, organization_id, round, asked_at, slot_at, is_reserved)
    values (a_source, asker, organization, mine.round, at, slot_at, is_reserved)
        on conflict (source, request_id) do update set slot_at = excluded.slot_at, is_reserved = excluded.is_reserved;
  end if;
end $$;

-- Admits a call of a source for a request (null: on our own account), or says why it must wait and
-- when to ask again. An admitted call takes all it needs: its slot, the trial of an open breaker,
-- its cost of the day's credits. Calls that share a limit, a budget, or a trial are admitted one
-- after the other: each locks the source's health first.
create function admit_call(
  a_source text, a_request text, limits jsonb, daily_credits numeric, cost numeric, patience interval, trial_every interval,
  verifiers jsonb,
  out kind text, out why text, out era integer, out at timestamptz, out again_at timestamptz, out waited interval
) language plpgsql as $$
declare
  asker text := coalesce(a_request, '');
  organization text := coalesce((select organization_id from requests where id = a_request), '');
  health source_health;
  on_day date;
  latest timestamptz;
  slot record;
begin
  kind := 'wait';
  insert into source_health (source) values (a_source) on conflict do nothing;
  select * into health from source_health where source = a_source;
  if health.state = 'open' or limits <> '[]' or daily_credits is not null then
    select * into health from source_health where source = a_source for update;
  end if;
  era := health.era;
  at := clock_timestamp();
  on_day := (at at time zone 'UTC')::date;

  select closed.why, closed.until into why, again_at from closed_until(health, at) closed;
  if why is not null then
    return;
  end if;

  if not has_verifier(verifiers, organization, on_day, at) then
    why := 'verifier_unavailable';
    again_at := at;
    return;
  end if;

  if not has_budget(a_source, organization, on_day, cost, daily_credits) then
    -- The organization counts as one that asks all the same.
    insert into source_spend (source, day, organization_id) values (a_source, on_day, organization)
      on conflict do nothing;
    kind := 'spent';
    return;
  end if;

  if limits <> '[]' then
    -- A request without time left still gets a slot that is free now.
    latest := at + greatest(patience, '0');
    select * into slot from next_slot(a_source, asker, organization, limits, latest, at);
    if slot.slot_at > at then
      why := 'rate_limit';
      again_at := slot.slot_at;
      if not slot.is_reserved and slot.slot_at <= latest then
        again_at := slot.slot_at - interval '2 s';
      end if;
      return;
    end if;
    delete from source_slots where source = a_source and request_id = asker returning at - asked_at into waited;
    waited := coalesce(waited, '0');
  end if;

  if cost > 0 then
    insert into source_spend as s (source, day, organization_id, credits) values (a_source, on_day, organization, cost)
      on conflict (source, day, organization_id) do update set credits = s.credits + excluded.credits;
  end if;
  if health.state = 'open' then
    update source_health set open_until = at + trial_every where source = a_source;
  end if;
  kind := 'go';
end $$;

-- The directory: every address a vendor ever named for an NPI, with the newest verdict on it and
-- where it came from.
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
  -- While somebody checks it, or a mail server has asked to come back: nobody else is paid for the
  -- same check.
  checking_until timestamptz(3),
  -- The request for which it was last taken to be checked.
  checking_for text,
  -- Whether all that says whose it is repeats our question.
  is_echo boolean not null default false,
  -- False where the source's licence lets us answer with an address but not keep it: it serves its
  -- own lookup alone.
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

-- Every judgement ever made of an address: who named it, which check rejected or accepted it, and
-- why.
create table email_checks (
  id bigint primary key generated always as identity,
  npi text collate "C" not null,
  email text not null,
  lookup_id text references lookups,
  -- named: a source proposed it; identity, local: our own checks; verifier: a mailbox check;
  -- verdict: what came of all.
  kind text not null check (kind in ('named', 'identity', 'local', 'verifier', 'verdict')),
  -- Vendor, verifier or `nppes`; ours is `service`.
  source text not null,
  verdict text not null check (verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')),
  reason text,
  duration_ms integer,
  -- How long the call of a verifier waited for its slot under the verifier's rate limits.
  waited_ms integer,
  at timestamptz(3) not null default clock_timestamp()
);
create index email_checks_by_npi on email_checks (npi, email, id);
create index email_checks_by_lookup on email_checks (lookup_id) where lookup_id is not null;
create index email_checks_by_email on email_checks (email);
-- How verifiers do, as vendor_attempts_by_time tells of vendors.
create index email_checks_by_verifier on email_checks (at) where kind = 'verifier';

-- Closes the lookups of requests that were just settled: those that have their answer, and those
-- whose last waiting request has given up. Notes whose answer it is, and gives back the slots that
-- the requests wait for. Part of the settling transaction, and its last locks. Planned once, and by
-- indexes only: PostgreSQL takes a plan for lists of any length to be worse than one for each list,
-- so it planned each call again; and a plan made while the tables were small read all of them.
create function close_lookups(request_ids text[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  theirs text[] := array(select lookup_id from requests where id = any(request_ids));
begin
  delete from source_slots where request_id = any(request_ids);
  -- A statement of its own: if two requests give up at once, the second must see that the first
  -- has. In one order, because organizations share lookups.
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
