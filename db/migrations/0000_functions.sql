-- The migrations contain the rules about money and the states of requests as constraints and
-- triggers, so that no code path can break them. Tables with their checks and indexes are generated
-- from db/schema.ts. Functions, triggers, and storage parameters are written by hand.
--
-- The functions in this file are created before the tables, because checks and indexes call them.

-- Returns true if an organization is a sandbox. The sandbox of an organization is a separate
-- organization whose id starts with sbx_. The id therefore shows whether a row belongs to a
-- sandbox, and check constraints can keep sandboxes out of a table without a join.
create function is_sandbox(organization_id text) returns boolean language sql immutable parallel safe as $$
  select starts_with(organization_id, 'sbx_')
$$;

-- Returns the email address of a provider's endpoint in lowercase and without "mailto:".
-- Suppressions contain hashes of addresses in this form. If the endpoint is not an email address,
-- for example a URL, returns its text in lowercase.
create function endpoint_address(an_endpoint text) returns text language sql immutable parallel safe as $$
  select regexp_replace(lower(trim(an_endpoint)), '^mailto:', '')
$$;

-- Returns the vendor whose account a half of a vendor uses (accountOf in db/words.ts).
create function account_of(vendor text) returns text
  language sql immutable parallel safe
  return regexp_replace(vendor, '-personal$', '');
