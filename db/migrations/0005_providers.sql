-- True if this NPI is not an active individual. Then no address is returned for it, even a stored
-- one. A negative result of the registry counts for a day, and NPPES data until the next file. It
-- is plpgsql, like is_suppressed, so that it is planned once per connection and not in each
-- statement that requests 60 addresses.
create function is_inactive(an_npi text) returns boolean language plpgsql stable parallel safe as $$
begin
  return exists (
    select from providers where npi = an_npi
       and (entity_type = 2 or not active and (origin = 'nppes' or imported_at > now() - interval '24 hours'))
  );
end $$;
