-- The parts of NPPES that we use to identify providers.

-- A row per NPI. Unused columns of NPPES (sex, taxonomy, licenses, mailing address) are not stored.
create table providers (
  npi text collate "C" primary key check (npi ~ '^[0-9]{10}$'),
  -- 1 is a person, 2 is an organization. Null for deactivated NPIs, whose rows have no other data.
  entity_type smallint check (entity_type in (1, 2)),
  last_name text,
  first_name text,
  middle_name text,
  name_suffix text,
  credential text,
  other_last_name text,
  other_first_name text,
  organization_name text,
  -- The legal name of the parent organization.
  parent_name text,
  practice_line_1 text,
  practice_line_2 text,
  practice_city text,
  practice_state text,
  practice_postal_code text,
  practice_phone text,
  -- Normalized keys that the providers of one practice share. The phone key is ten digits. The
  -- address key is street, number, and suite with the five-digit ZIP.
  phone_key text,
  address_key text,
  updated_on date,
  deactivated_on date,
  reactivated_on date,
  -- True if the file says so in a separate column, as V3 does with or without a date; null
  -- otherwise.
  deactivated boolean check (deactivated),
  active boolean not null generated always as (
    deactivated is null
    and (deactivated_on is null or (reactivated_on is not null and reactivated_on >= deactivated_on))
  ) stored,
  origin text not null check (origin in ('nppes', 'registry')),
  -- The day of this state: the last day of the file, or the day of the registry request. Older data
  -- does not replace it.
  as_of date not null default current_date,
  -- Shows whether a row has changed without comparing columns.
  row_hash bigint not null,
  -- The import that last wrote this row (import_runs.number); null for data of the registry.
  import_number integer,
  imported_at timestamptz(3) not null default clock_timestamp()
);
-- Find organizations with the same phone or address as a person.
create index providers_organizations_by_phone on providers (phone_key) where entity_type = 2;
create index providers_organizations_by_address on providers (address_key) where entity_type = 2;

-- True if this NPI is not an active individual. Then no address is returned for it, even a stored
-- one. A negative result of the registry counts for a day, and NPPES data until the next file. It
-- uses plpgsql for the same reason as is_suppressed: it is planned once per connection, and not
-- again in each statement that requests 60 addresses.
create function is_inactive(an_npi text) returns boolean language plpgsql stable parallel safe as $$
begin
  return exists (
    select from providers where npi = an_npi
       and (entity_type = 2 or not active and (origin = 'nppes' or imported_at > now() - interval '24 hours'))
  );
end $$;

create table provider_endpoints (
  npi text collate "C" not null,
  kind text not null check (kind in ('DIRECT', 'CONNECT', 'SOAP', 'FHIR', 'REST', 'OTHERS')),
  endpoint text not null,
  affiliation_name text,
  import_number integer,
  primary key (npi, kind, endpoint)
);

-- Returns the email address of an endpoint, normalized as in suppressions. Returns the text of an
-- endpoint that is not an address.
create function endpoint_address(an_endpoint text) returns text language sql immutable parallel safe as $$
  select regexp_replace(lower(trim(an_endpoint)), '^mailto:', '')
$$;

-- Used by erasures to find the addresses of a person.
create index provider_endpoints_by_address on provider_endpoints (endpoint_address(endpoint)) where endpoint like '%@%';

-- The names under which organizations do business.
create table provider_other_names (
  npi text collate "C" not null,
  name text not null,
  type_code text not null,
  import_number integer,
  primary key (npi, name, type_code)
);

-- Practice locations other than the primary one, of persons and organizations.
create table provider_locations (
  npi text collate "C" not null,
  line_1 text not null,
  line_2 text not null,
  city text not null,
  state text not null,
  postal_code text not null,
  phone text,
  phone_key text,
  address_key text,
  import_number integer,
  primary key (npi, line_1, line_2, city, state, postal_code)
);
create index provider_locations_by_phone on provider_locations (phone_key);
create index provider_locations_by_address on provider_locations (address_key);

-- Clinicians' practice locations and the groups they bill Medicare for, from CMS's "Doctors and
-- Clinicians".
create table clinician_practices (
  npi text collate "C" not null,
  -- The group's id in Medicare's enrollment system; empty for clinicians who bill for themselves.
  pac_id text collate "C" not null,
  -- Both keys are empty if they are unknown.
  phone_key text not null,
  address_key text not null,
  -- The group's legal name, and the number of clinicians who bill for it.
  name text,
  members integer,
  import_number integer,
  primary key (npi, pac_id, phone_key, address_key)
);
create index clinician_practices_by_group on clinician_practices (pac_id) where pac_id <> '';

-- Employer domains from an operator. The key is an organization's or a person's NPI, a group's PAC
-- id, or the normalized name of an organization.
create table employer_domains (
  key text collate "C" primary key check (key ~ '^(npi|pac_id|name):.'),
  domain text not null
);

-- Imports. An interrupted import is run again from the beginning. Its rows are the same the second
-- time.
create table import_runs (
  id text primary key,
  -- Identifies the import in the rows it wrote, in four bytes instead of the thirty of the id.
  number integer not null generated always as identity unique,
  kind text not null check (kind in ('nppes', 'clinicians', 'domains', 'emails', 'suppressions')),
  -- The file name without its folder, and a fingerprint that identifies the same content.
  file text not null,
  fingerprint text not null,
  state text not null check (state in ('running', 'done', 'failed')),
  counts jsonb not null default '{}',
  started_at timestamptz(3) not null default clock_timestamp(),
  finished_at timestamptz(3),
  check ((finished_at is null) = (state = 'running'))
);
