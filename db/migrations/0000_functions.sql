-- The migrations hold the rules about money and state, so that no code path can break them. Tables
-- with their checks and indexes are generated from db/schema.ts. Functions, triggers, and storage
-- parameters are written by hand.
--
-- These functions come before the tables, because checks and indexes call them.

-- The sandbox of an organization is a separate organization with a special id. The id shows whether
-- a row belongs to a sandbox, so no join is needed, and the rules that keep sandboxes apart are
-- checks of one row.
create function is_sandbox(organization_id text) returns boolean language sql immutable parallel safe as $$
  select starts_with(organization_id, 'sbx_')
$$;

-- Returns the email address of an endpoint, normalized as in suppressions. Returns the text of an
-- endpoint that is not an address.
create function endpoint_address(an_endpoint text) returns text language sql immutable parallel safe as $$
  select regexp_replace(lower(trim(an_endpoint)), '^mailto:', '')
$$;
