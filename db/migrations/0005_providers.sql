-- Providers: NPIs that are not looked up, calls of the NPI Registry, and former surnames.

-- Returns the reason why NPPES rules out that an NPI is looked up; null if there is no reason. These
-- reasons are public, so the free check shows them. If the NPI Registry says that an NPI is inactive,
-- we rely on this for 24 hours. If an NPPES file says so, we rely on it until the next file is
-- imported.
--
-- Both functions are written in plpgsql, so that their queries are planned once per connection, and
-- not again in each statement that calls them.
create function public_refusal_of(an_npi text) returns text language plpgsql stable parallel safe as $$
begin
  return (
    select case when active then 'organization_npi' else 'deactivated' end
      from providers
     where npi = an_npi
       and (entity_type = 2 or not active and (origin = 'nppes' or imported_at > now() - interval '24 hours')));
end $$;

-- Returns the reason why an NPI is not looked up and none of its addresses is returned; null if there
-- is no reason. The plan, each step, and settling ask this function. A public reason comes first, so
-- that an objection changes nothing that customers can see about such an NPI.
create function refusal_of(an_npi text) returns text language plpgsql stable parallel safe as $$
begin
  return coalesce(public_refusal_of(an_npi), case when is_suppressed(an_npi, null) then 'suppressed' end);
end $$;

-- Returns true if the NPI Registry must be asked about an NPI: no import contains it, and the registry
-- was not asked within the last 24 hours. We do not call the public registry more often than that. A
-- row from an older response stays in use until a newer response arrives.
create function is_registry_due(an_npi text) returns boolean language sql stable as $$
  select not exists (
    select from providers
     where npi = an_npi and (origin = 'nppes' or imported_at > clock_timestamp() - interval '24 hours'))
$$;

-- Returns a provider's last three former surnames after its row gets these names, newest first. If the first
-- word of the given name changes too, none is kept, because the row was probably another person's by mistake,
-- and so were its addresses.
create function kept_surnames(old providers, new_first text, new_last text) returns text[]
language sql immutable parallel safe as $$
  select array(
    select surname
      from (
        select old.last_name as surname, 0 as place
         where old.entity_type = 1
        union all
        select surname, place from unnest(old.former_last_names) with ordinality former (surname, place)) known
     where lower(surname) <> lower(coalesce(new_last, ''))
       and (lower(split_part(old.first_name, ' ', 1)) = lower(split_part(new_first, ' ', 1))
            or lower(old.last_name) = lower(new_last))
     order by place
     limit 3)
$$;
