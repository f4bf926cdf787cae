-- Returns true if an NPI is known to be an organization or inactive. No address is returned for
-- such an NPI, even if one is stored. If the NPI Registry says that an NPI is inactive, we rely on
-- this for 24 hours. If an NPPES file says so, we rely on it until the next file is imported.
--
-- The function is written in plpgsql, so that its query is planned once per connection, and not
-- again in each statement that calls it.
create function is_inactive(an_npi text) returns boolean language plpgsql stable parallel safe as $$
begin
  return exists (
    select from providers where npi = an_npi
       and (entity_type = 2 or not active and (origin = 'nppes' or imported_at > now() - interval '24 hours'))
  );
end $$;
