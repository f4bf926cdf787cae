-- Returns the reason why an NPI is not looked up and none of its addresses is returned; null if there
-- is no reason. The plan, each step, and settling ask this function. If the NPI Registry says that an
-- NPI is inactive, we rely on this for 24 hours. If an NPPES file says so, we rely on it until the
-- next file is imported.
--
-- The function is written in plpgsql, so that its query is planned once per connection, and not
-- again in each statement that calls it.
create function refusal_of(an_npi text) returns text language plpgsql stable parallel safe as $$
begin
  if is_suppressed(an_npi, null) then
    return 'suppressed';
  end if;
  return (
    select case when active then 'organization_npi' else 'deactivated' end
      from providers
     where npi = an_npi
       and (entity_type = 2 or not active and (origin = 'nppes' or imported_at > now() - interval '24 hours')));
end $$;

-- Returns true if the NPI Registry must be asked about an NPI: no import contains it, and the registry
-- was not asked within the last 24 hours. We do not call the public registry more often than that. A
-- row from an older response stays in use until a newer response arrives.
create function is_registry_due(an_npi text) returns boolean language sql stable as $$
  select not exists (
    select from providers
     where npi = an_npi and (origin = 'nppes' or imported_at > clock_timestamp() - interval '24 hours'))
$$;
