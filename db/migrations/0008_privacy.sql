-- Suppressions, erasures, and the audit log.

-- Returns true if nothing may be returned for an NPI, or if this address must not be returned for
-- it. With a null address, only the NPI is checked. The function is written in plpgsql and uses a
-- generic plan, so that its query is planned once per connection, and not again in each statement
-- that calls it.
create function is_suppressed(an_npi text, an_email text) returns boolean language plpgsql stable parallel safe
  set plan_cache_mode = force_generic_plan as $$
declare
  domain text := split_part(lower(an_email), '@', 2);
  keys text[] := array[an_npi, encode(sha256(convert_to(lower(an_email), 'UTF8')), 'hex')];
begin
  while domain <> '' loop
    keys := keys || domain;
    domain := substr(domain, strpos(domain || '.', '.') + 1);
  end loop;
  return exists (
    select from suppressions
     where value = any (keys) and kind = case value when keys[1] then 'npi' when keys[2] then 'email' else 'domain' end
  );
end $$;

-- Inserts the only row of the table. The trigger below updates it.
insert into suppression_changes (n) values (0);

create function count_suppression_change() returns trigger language plpgsql as $$
begin
  update suppression_changes set n = n + 1;
  return null;
end $$;

create trigger suppressions_count_change after insert or update or delete or truncate on suppressions
  for each statement execute function count_suppression_change();

-- Returns true if the data of this NPI or this lowercase address was erased. An erasure leaves a
-- row with the origin 'erasure' in suppressions.
create function is_erased(an_npi text, an_email text) returns boolean language sql stable parallel safe as $$
  select exists (
    select from suppressions where kind = 'npi' and value = an_npi and origin = 'erasure'
    union all
    select from suppressions
     where kind = 'email' and value = encode(sha256(convert_to(an_email, 'UTF8')), 'hex') and origin = 'erasure'
  )
$$;

-- Skips the insert of an endpoint whose email address was erased. NPPES files and the NPI Registry
-- may still contain it, so an import would add it again.
create function skip_erased_endpoint() returns trigger language plpgsql as $$
begin
  if is_erased(new.npi, endpoint_address(new.endpoint)) then
    return null;
  end if;
  return new;
end $$;

create trigger provider_endpoints_skip_erased before insert on provider_endpoints
  for each row when (new.endpoint like '%@%') execute function skip_erased_endpoint();

create trigger audit_log_append_only before update or delete on audit_log
  for each row execute function refuse_change();

create trigger audit_log_no_truncate before truncate on audit_log
  for each statement execute function refuse_change();

-- Sets the database user and the time of an entry, so that a client of the database cannot insert
-- false ones.
create function sign_audit_entry() returns trigger language plpgsql as $$
begin
  new.db_user := session_user;
  new.at := clock_timestamp()::timestamptz(3);
  return new;
end $$;

create trigger audit_log_signed before insert on audit_log for each row execute function sign_audit_entry();
