-- Lookups: functions that decide whether a vendor or another source may be called now, that begin
-- the steps of lookups, and that close them.

-- Leaves half of each page free for updates, as for rate_windows (0002_accounts.sql).
alter table source_rates set (fillfactor = 50);
alter table source_spend set (fillfactor = 50);

-- Returns the reason why a source must not be called, and the end of that time. Either the source
-- asked for a pause (Retry-After), or its circuit breaker is open. Returns nulls if the source may
-- be called. If the pause or the opening begins in the future, the clock was set back since then, for
-- example by a failover. It then counts as over, because nobody knows when it ends. The tolerance of
-- a second is for rounding.
create function closed_until(health source_health, at timestamptz, out why text, out until timestamptz)
language sql immutable as $$
  select why, until
    from (values
           (1, 'paused', health.paused_at, health.paused_until),
           (2, 'breaker_open', health.opened_at, health.open_until)) reason (rank, why, since, until)
   where until > at and coalesce(since < at + interval '1 s', true)
   order by rank limit 1
$$;

-- Returns true if an organization may spend `cost` credits at a source on a day. Null daily_credits
-- means no limit. If other organizations called or wanted to call the source on that day or the day
-- before, one organization gets at most half of the day's credits, but at least the cost of one
-- call.
create function has_budget(a_source text, organization text, on_day date, cost numeric, daily_credits numeric)
returns boolean language sql stable as $$
  select cost = 0 or daily_credits is null or (
    select coalesce(sum(credits) filter (where day = on_day), 0) + cost <= daily_credits
           and (coalesce(sum(credits) filter (where day = on_day and organization_id = organization), 0) + cost
                  <= greatest(daily_credits / 2, cost)
                or coalesce(bool_and(organization_id in (organization, '')), true))
      from source_spend where source = a_source and day >= on_day - 1)
$$;

-- Returns true if at least one of the required verifiers can be called, or if none is required.
-- verifiers: a JSON array of objects with source, cost, and dailyCredits.
create function has_verifier(verifiers jsonb, organization text, on_day date, at timestamptz)
returns boolean language sql stable as $$
  select verifiers = '[]' or exists (
    select from jsonb_to_recordset(verifiers) v (source text, cost numeric, "dailyCredits" numeric)
           left join source_health h using (source)
     where coalesce(h.state, 'closed') = 'closed' and (closed_until(h, at)).why is null
       and has_budget(v.source, organization, on_day, v.cost, v."dailyCredits"))
$$;

-- Returns the next slot of a request under the rate limits of a source.
--
-- The problem: a source allows 5 calls a second, and 300 lookups of several organizations want to
-- call it. Every slot must be used exactly once, and no organization may wait behind all lookups of
-- another one. If all 300 lookups reserved their slots at once, no slot would be lost, but an
-- organization that comes later would wait for a minute. If only the first request in the queue
-- reserved a slot, a slot would be lost whenever that request comes late. In a test of this, a
-- source with a limit of 5/s was called only 1.7 times a second.
--
-- The solution: a slot is reserved for a request only if it is less than 5 s away. The request
-- waits for its slot inside its activity. All other requests get an expected time, and retry 2 s
-- before it. They are ordered in rounds. The first round has the first waiting request of each
-- organization, the second round has the second request of each organization, and so on. The first
-- request that retries gets the next free slot, so that a late request does not delay others. A
-- request that is more than 2 s late for its reserved slot loses it and gets the next free slot.
-- Otherwise a worker that was stopped for some time would make all its calls at once.
--
-- With 300 waiting requests, a source with a limit of 5/s is called 4.86 times a second, and a
-- lookup needs 1.9 attempts on average (test/bench/slots.ts). The distance between slots is 3%
-- longer than the limit requires, because calls start some milliseconds late.
--
-- If the clock was set back, stored times are too far in the future. Slots that were asked for in the
-- future are deleted, and so are reserved slots that are more than 5 s away. The next free slot of a
-- limit is never further away than 5 s and the distance between two slots. The tolerance of a second
-- is for rounding.
--
-- limits: a JSON array with the name, pace, and burst of each rate limit. The pace is the time
-- between two calls, and the burst is how far calls may be ahead of the pace. latest: the last time
-- at which a slot is still useful for the request.
create function next_slot(
  a_source text, asker text, organization text, limits jsonb, latest timestamptz, at timestamptz,
  out slot_at timestamptz, out is_reserved boolean
) language plpgsql as $$
declare
  late constant timestamptz := at - interval '2 s';
  mine source_slots;
  ahead integer;
begin
  delete from source_slots s
   where s.source = a_source
     and (s.slot_at < at - interval '10 s'
          or s.asked_at > at + interval '1 s'
          or s.is_reserved and s.slot_at > at + interval '6 s');
  update source_rates r set next_at = at + interval '5 s' + l.burst + l.pace
    from jsonb_to_recordset(limits) l (name text, pace interval, burst interval)
   where r.source = a_source and r.limit_name = l.name and r.next_at > at + interval '6 s' + l.burst + l.pace;
  select * into mine from source_slots s where s.source = a_source and s.request_id = asker;
  if mine.is_reserved and mine.slot_at > late then
    slot_at := mine.slot_at;
    is_reserved := true;
    return;
  end if;
  if mine.round is null then
    -- The request queues after the other requests of its organization. If there aren't any, it joins
    -- the current round.
    select greatest(0, min(s.round) filter (where s.slot_at > late), max(s.round) filter (where s.organization_id = organization) + 1)
      into mine.round from source_slots s where s.source = a_source;
  end if;
  select count(*) into ahead from source_slots s
   where s.source = a_source and not s.is_reserved and s.slot_at > late
     and (s.round < mine.round or s.round = mine.round and (mine.n is null or s.n < mine.n));
  select max(greatest(r.next_at - l.burst, at)), max(greatest(greatest(r.next_at, at) + l.pace * ahead - l.burst, at))
    into slot_at, mine.slot_at
    from jsonb_to_recordset(limits) l (name text, pace interval, burst interval)
         left join source_rates r on r.source = a_source and r.limit_name = l.name;
  is_reserved := mine.slot_at <= at + interval '5 s' and slot_at <= latest;
  if is_reserved then
    -- This is the generic cell rate algorithm (ITU-T I.371).
    insert into source_rates (source, limit_name, next_at)
    select a_source, l.name, greatest(r.next_at, slot_at) + l.pace
      from jsonb_to_recordset(limits) l (name text, pace interval)
           left join source_rates r on r.source = a_source and r.limit_name = l.name
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

-- Admits a call to a source, or returns why the call must wait and when to retry. a_request is null
-- if the call is not for a request. For an admitted call, the slot under the rate limits, the trial
-- call of an open circuit breaker, and the cost in the daily budget are reserved. If a source has a
-- limit, a budget, or an open breaker, its calls are admitted one after the other, because each
-- admission first locks the source's row in source_health.
--
-- at: the time of the admission, and at_ms the same in milliseconds since the epoch. waited_ms: how
-- long the call waited for its slot. after_ms: the time to wait before the next try.
create function admit_call(
  a_source text, a_request text, limits jsonb, daily_credits numeric, cost numeric, patience interval, trial_every interval,
  verifiers jsonb,
  out kind text, out why text, out era integer, out at timestamptz, out at_ms float8, out waited_ms integer, out after_ms float8
) language plpgsql as $$
declare
  asker text := coalesce(a_request, '');
  organization text := coalesce((select organization_id from requests where id = a_request), '');
  health source_health;
  on_day date;
  latest timestamptz;
  slot record;
  again_at timestamptz;
begin
  kind := 'wait';
  insert into source_health (source) values (a_source) on conflict do nothing;
  select * into health from source_health where source = a_source;
  if health.state = 'open' or limits <> '[]' or daily_credits is not null then
    select * into health from source_health where source = a_source for update;
  end if;
  era := health.era;
  at := clock_timestamp();
  at_ms := extract(epoch from at) * 1000;
  waited_ms := 0;
  on_day := (at at time zone 'UTC')::date;

  select closed.why, ceil(extract(epoch from closed.until - at) * 1000) into why, after_ms from closed_until(health, at) closed;
  if why is not null then
    return;
  end if;

  if not has_verifier(verifiers, organization, on_day, at) then
    why := 'verifier_unavailable';
    after_ms := 0;
    return;
  end if;

  if not has_budget(a_source, organization, on_day, cost, daily_credits) then
    -- Records that the organization wanted to call the source, although this call is not made.
    -- Because of this row, has_budget lets every other organization use only half of the credits.
    insert into source_spend (source, day, organization_id) values (a_source, on_day, organization)
      on conflict do nothing;
    kind := 'spent';
    return;
  end if;

  if limits <> '[]' then
    -- Even a request that has no time left can use a slot that is free now.
    latest := at + greatest(patience, '0');
    select * into slot from next_slot(a_source, asker, organization, limits, latest, at);
    if slot.slot_at > at then
      why := 'rate_limit';
      again_at := slot.slot_at;
      if not slot.is_reserved and slot.slot_at <= latest then
        again_at := slot.slot_at - interval '2 s';
      end if;
      after_ms := ceil(extract(epoch from again_at - at) * 1000);
      return;
    end if;
    delete from source_slots where source = a_source and request_id = asker
      returning extract(epoch from at - asked_at) * 1000 into waited_ms;
    waited_ms := coalesce(waited_ms, 0);
  end if;

  if cost > 0 then
    insert into source_spend as s (source, day, organization_id, credits) values (a_source, on_day, organization, cost)
      on conflict (source, day, organization_id) do update set credits = s.credits + excluded.credits;
  end if;
  if health.state = 'open' then
    update source_health set opened_at = at, open_until = at + trial_every where source = a_source;
  end if;
  kind := 'go';
end $$;

-- Returns true if a vendor of a lookup has responded, with or without an address.
create function has_sought(a_lookup text) returns boolean language sql stable as $$
  select exists (select from vendor_attempts where lookup_id = a_lookup and state in ('found', 'miss'))
$$;

-- Returns true if an address of the directory may complete a request, unless it is suppressed. A
-- personal address completes a request for `any` only if a professional one was looked for, either
-- recently or in the lookup of this request (`is_sought`). Otherwise one customer's request for
-- `personal` would change the results of all others. This does not apply to what people list in NPPES.
create function is_usable(stored stored_emails, wanted text, is_sought boolean, at timestamptz, freshness interval)
returns boolean language sql stable as $$
  select stored.verdict = 'valid'
     and stored.last_validated_at >= at - freshness
     and (wanted = stored.email_type
          or wanted = 'any' and (stored.email_type = 'professional' or stored.source = 'nppes' or is_sought
                                 or coalesce(stored.professional_sought_at >= at - freshness, false)))
$$;

-- Returns true if a checked candidate of a lookup completes a request for this type. For `any`, a personal
-- one that is not in NPPES does only after a vendor of this lookup has responded. Before that, no
-- professional one was looked for.
create function has_usable_candidate(a_lookup text, wanted text, at timestamptz, freshness interval)
returns boolean language plpgsql stable as $$
begin
  return exists (
    select from candidates c
     where c.lookup_id = a_lookup and c.verdict = 'valid' and c.validated_at >= at - freshness
       and not is_suppressed(c.npi, c.email)
       and (wanted = c.email_type
            or wanted = 'any' and (c.email_type = 'professional' or c.source = 'nppes' or has_sought(a_lookup))));
end $$;

-- Begins a step of a request's lookup: a call of a vendor, or the check of addresses (a_vendor is
-- null). Returns what decides the step, and takes the lookup's turn for `turn` if the step needs it and
-- it is free. Only the worker with the turn calls a vendor or checks addresses. So each is paid once,
-- although several requests share the lookup.
--
-- The lookup is locked first, and each statement of the function reads what was committed before it.
-- So what it returns is as new as the turn: nothing that the last turn recorded is missed. The lock
-- ends with the function.
--
-- A turn is over at turn_until, even if its worker did not give it back. A retry of the same request
-- waits for that too, because the former call may still run. No turn is longer than `longest`. If
-- one ends later, the clock was set back, and it ends after `longest`: the longest call of a vendor
-- (200 s, `call` in the sources file) and its margin (25 s).
--
-- until: the end of the turn that was taken; null if none was needed or none was free. free_in: the
-- time until the current turn is over, which may be an earlier one of this request. The rest is null
-- without an attempt at the vendor: n, state, and reason of the last one, the number of lost ones, and
-- the time until the next poll. orphan_of: an earlier lookup of the same NPI and type whose job at the
-- vendor was not finished.
create function begin_step(
  a_request text, a_vendor text, turn interval, freshness interval,
  out is_settled boolean, out refusal text, out is_stored boolean, out lookup text, out wanted text,
  out n smallint, out state text, out reason text, out lost integer, out poll_in interval, out orphan_of text,
  out until timestamptz, out free_in interval
) language plpgsql as $$
declare
  longest constant interval := '225 s';
  an_npi text;
  held lookups;
  at timestamptz;
begin
  select r.lookup_id into lookup from requests r where r.id = a_request;
  select * into held from lookups l where l.id = lookup for no key update;
  at := clock_timestamp();

  select r.npi, r.requested_type, r.settled_at is not null, refusal_of(r.npi) into an_npi, wanted, is_settled, refusal
    from requests r where r.id = a_request;
  is_stored := exists (
      select from stored_emails s
       where s.npi = an_npi and is_usable(s, wanted, false, at, freshness) and not is_suppressed(s.npi, s.email))
    or has_usable_candidate(lookup, wanted, at, freshness);
  select a.n, a.state, a.reason, case when a.polled_at <= at + interval '1 s' then a.next_poll_at - at end,
         (select count(*) from vendor_attempts b where b.lookup_id = lookup and b.vendor = a_vendor and b.state = 'lost')
    into n, state, reason, poll_in, lost
    from vendor_attempts a where a.lookup_id = lookup and a.vendor = a_vendor order by a.n desc limit 1;
  if n is null and a_vendor is not null then
    select a.lookup_id into orphan_of
      from lookups l join vendor_attempts a on a.lookup_id = l.id
     where l.npi = an_npi and l.requested_type = wanted and l.closed_at is not null and l.id <> lookup
       and a.vendor = a_vendor and a.state = 'pending' and a.started_at > at - interval '1 day'
     order by a.started_at desc limit 1;
  end if;

  if lookup is null or is_settled or refusal is not null or is_stored
     or state in ('miss', 'blocked', 'fatal') or state = 'found' and reason is not null then
    return;
  end if;
  if held.turn_until > at + longest + interval '1 s' then
    update lookups l set turn_until = at + longest where l.id = lookup;
    free_in := longest;
  elsif held.turn_until > at then
    free_in := held.turn_until - at;
  else
    update lookups l set turn_of = a_request, turn_until = at + turn where l.id = lookup returning l.turn_until into until;
  end if;
end $$;

-- Closes the lookups of requests that were just settled. A lookup is closed if one of these
-- requests is completed or not_found, or if none of the lookup's requests is open any more. The
-- function also marks the vendor calls that found an address which a client received, and deletes
-- the slots that the requests were waiting for. If a professional address was looked for in vain, it
-- stores the time in the person's personal addresses (professional_sought_at). It runs at the end of
-- the settling transaction, so that the lookups are locked last.
--
-- The settings keep one plan that uses only indexes. Without them, PostgreSQL plans each call again,
-- because a generic plan for a list of ids seems expensive. A plan that was made while the tables
-- were small would read whole tables.
create function close_lookups(request_ids text[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  theirs text[] := array(select lookup_id from requests where id = any(request_ids));
begin
  delete from source_slots where request_id = any(request_ids);
  -- The lookups are locked in a separate statement before the update. If two requests of a lookup
  -- fail at once, the update of the second one must see that the first one is settled. Rows are
  -- locked in a fixed order, because requests of several organizations share lookups and could
  -- deadlock.
  perform from lookups where id = any(theirs) order by npi, requested_type for no key update;
  update vendor_attempts a set returned = true
    from requests r join email_checks c on (c.lookup_id, c.npi, c.email) = (r.lookup_id, r.npi, r.email)
   where r.lookup_id = any(theirs) and r.status = 'completed' and c.kind = 'named'
     and a.lookup_id = r.lookup_id and a.vendor = c.source and a.state = 'found' and a.reason is null and not a.returned;
  update stored_emails s set professional_sought_at = r.settled_at from requests r
   where r.id = any(request_ids) and r.lookup_id is not null and r.requested_type <> 'personal'
     and (r.status = 'not_found' or r.status = 'completed' and r.email_type = 'personal')
     and has_sought(r.lookup_id)
     and s.npi = r.npi and s.verdict = 'valid' and s.email_type = 'personal';
  update lookups l set closed_at = r.settled_at from requests r
   where r.id = any(request_ids) and l.id = r.lookup_id and l.closed_at is null
     and (r.status <> 'failed' or not exists (
       select from requests other where other.lookup_id = l.id and other.settled_at is null));
end $$;

-- Adds the evidence of a candidate's check. A check that had to wait for a verifier starts again from
-- the beginning. The results of our own rules (kind `local`) are then the same and are not added again.
--
-- lines: a JSON array of objects with kind, source, verdict, reason, durationMs, and waitedMs.
create function add_evidence(a_lookup text, an_npi text, an_email text, lines jsonb)
returns void language sql as $$
  insert into email_checks (npi, email, lookup_id, kind, source, verdict, reason, duration_ms, waited_ms)
  select an_npi, an_email, a_lookup, line.kind, line.source, line.verdict, line.reason, line."durationMs", line."waitedMs"
    from jsonb_to_recordset(lines) line (
           kind text, source text, verdict text, reason text, "durationMs" integer, "waitedMs" integer)
   where line.kind <> 'local' or not exists (
     select from email_checks c
      where c.lookup_id = a_lookup and c.npi = an_npi and c.email = an_email and c.kind = 'local'
        and c.verdict = line.verdict and c.reason is not distinct from line.reason)
$$;

-- Undoes rejections that may be wrong: those in a period, with a reason (null for any), and by a
-- verifier (null for any, and for our own checks). The rejected addresses wait for a check again, the
-- evidence is deleted, and the vendors that named the addresses are called again. Valid addresses stay.
--
-- Rows are locked in the order candidates, stored_emails, email_checks, like in all other statements,
-- so that no two can deadlock. Each table is locked before its update, because an update has no order.
create function forget_checks(
  since timestamptz, until timestamptz, a_reason text, a_source text,
  out checks integer, out addresses integer, out misses integer
) language plpgsql as $$
declare
  rejections bigint[] := array(
    select id from email_checks
     where at >= since and at < until and kind in ('local', 'verifier') and verdict <> 'valid'
       and (a_reason is null or reason = a_reason)
       and (a_source is null or kind = 'verifier' and source = a_source));
begin
  perform from candidates c
    where (c.npi, c.email) in (select npi, email from email_checks where id = any(rejections)) and c.verdict <> 'valid'
    order by c.lookup_id, c.email collate "C" for update;
  update candidates c set verdict = null, email_type = null, reason = null, validated_at = null
    where (c.npi, c.email) in (select npi, email from email_checks where id = any(rejections)) and c.verdict <> 'valid';

  perform from stored_emails s
    where (s.npi, s.email) in (select npi, email from email_checks where id = any(rejections))
      and s.verdict <> 'valid' and s.reason is distinct from 'imported'
    order by s.npi, s.email for update;
  update stored_emails s
     set verdict = 'unknown', reason = 'forgotten', last_validated_at = null, updated_at = clock_timestamp()
    where (s.npi, s.email) in (select npi, email from email_checks where id = any(rejections))
      and s.verdict <> 'valid' and s.reason is distinct from 'imported';
  get diagnostics addresses = row_count;

  update vendor_attempts a set reason = null
    where a.state = 'found' and a.reason = 'none_valid' and (a.lookup_id, a.vendor) in (
      select n.lookup_id, n.source from email_checks n
       where n.kind = 'named'
         and (n.npi, n.email) in (select npi, email from email_checks where id = any(rejections)));
  get diagnostics misses = row_count;

  delete from email_checks where id = any(rejections);
  get diagnostics checks = row_count;
end $$;
