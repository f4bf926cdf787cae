-- Privacy: suppressions, erasures, the audit log, and what a customer may see of the evidence.

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

-- Returns true if an address contains a word of a name. Shorter words occur by chance.
create function has_word_of(local_part text, a_name text) returns boolean language sql immutable parallel safe as $$
  select exists (
    select from regexp_split_to_table(lower(a_name), '[^a-z]+') word
     where length(word) >= 3 and strpos(regexp_replace(lower(local_part), '[^a-z]', '', 'g'), word) > 0)
$$;

-- Returns what a customer may see of the evidence for each email of a batch. It runs with the
-- owner's rights, because the API must not read the sources of addresses. So it returns neither a
-- source nor the time of another customer's lookup, and counts only evidence that was there when the
-- request ended. Emails of a sandbox are invented, and an email that may no longer be shown has no
-- receipt.
create function receipts_of(a_batch text, an_organization text)
returns table (
  request_id text, sources integer, is_pattern boolean, reason text, has_surname boolean,
  has_given_name boolean, is_listed boolean, is_employers boolean, is_at_phone boolean
) language sql stable as $$
  select r.id,
         named.sources,
         named.is_pattern,
         (select c.reason
            from email_checks c
           where c.npi = r.npi and c.email = r.email and c.kind = 'verdict' and c.verdict = 'valid'
             and c.at <= known.until
           order by c.id desc
           limit 1),
         has_word_of(address.local, p.last_name),
         has_word_of(address.local, p.first_name),
         p.npi is not null and exists (
           select from provider_endpoints e
            where e.npi = r.npi and e.endpoint like '%@%' and endpoint_address(e.endpoint) = r.email),
         exists (
           select from employer_domains d
            where d.key = any (employers.keys)
              and (address.domain = d.domain or right(address.domain, length(d.domain) + 1) = '.' || d.domain)),
         r.email_type = 'professional' and exists (
           select from provider_endpoints e
            where e.npi = any (neighbors.npis)
              and e.endpoint like '%@%'
              and split_part(endpoint_address(e.endpoint), '@', 2) = address.domain)
    from requests r
    left join providers p on p.npi = r.npi and p.origin = 'nppes'
   cross join lateral (
     select split_part(r.email, '@', 1) as local, split_part(r.email, '@', 2) as domain
   ) address
   cross join lateral (
     -- A free repeat shows what was known when the email was charged. Later evidence is from requests of others.
     select least(r.settled_at, case when r.replayed then (
       select e.charged_at from entitlements e
        where e.organization_id = r.organization_id and e.npi = r.npi and e.email_type = r.email_type) end) as until
   ) known
   cross join lateral (
     -- Two halves of a vendor are one source. A list that an operator imported has no evidence.
     select count(distinct account_of(source)) filter (where source <> 'pattern')::integer as sources,
            coalesce(bool_or(source = 'pattern'), false) as is_pattern
       from (
         select c.source
           from email_checks c
          where c.npi = r.npi and c.email = r.email and c.kind = 'named' and c.verdict <> 'invalid'
            and c.at <= known.until
            -- Leaves out responses about another person (namedBy in db/lookups/checks.ts).
            and not exists (
              select from email_checks i
               where i.npi = c.npi and i.email = c.email and i.kind = 'identity'
                 and i.lookup_id = c.lookup_id and i.at = c.at)
         union all
         select s.source
           from stored_emails s
          where s.npi = r.npi and s.email = r.email and s.reason = 'imported'
            and s.first_seen_at <= known.until
       ) source
   ) named
   cross join lateral (
     -- A phone number of more organizations may be that of a switchboard.
     select case when count(*) <= 20 then array_agg(npi) end as npis
       from (
         select n.npi
           from providers n
          where n.phone_key = p.phone_key and n.entity_type = 2 and n.active and n.origin = 'nppes'
          limit 21
       ) near
   ) neighbors
   cross join lateral (
     -- The keys of employer_domains.
     select array(
       select 'npi:' || npi from unnest(neighbors.npis || r.npi) npi
       union all
       select 'pac_id:' || c.pac_id from clinician_practices c where c.npi = r.npi and c.pac_id <> ''
     ) as keys
   ) employers
   where r.batch_id = a_batch
     and r.organization_id = an_organization
     and r.email is not null
     and r.test_outcome is null
     and not is_suppressed(r.npi, r.email)
$$;
