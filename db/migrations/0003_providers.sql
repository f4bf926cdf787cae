-- Who an NPI is: NPPES, as far as it is used.

-- One row per NPI. What nothing reads (sex, taxonomy, licences, mailing address) is not kept.
create table providers (
  npi text collate "C" primary key check (npi ~ '^[0-9]{10}$'),
  -- 1: a person, 2: an organization; null in the rows of deactivated NPIs, which carry nothing
  -- else.
  entity_type smallint check (entity_type in (1, 2)),
  last_name text,
  first_name text,
  middle_name text,
  name_suffix text,
  credential text,
  other_last_name text,
  other_first_name text,
  organization_name text,
  -- The legal name of the organization that this one is a part of.
  parent_name text,
  practice_line_1 text,
  practice_line_2 text,
  practice_city text,
  practice_state text,
  practice_postal_code text,
  practice_phone text,
  -- What providers of one practice share, in one spelling: ten digits; street, number and suite
  -- with the five-digit ZIP.
  phone_key text,
  address_key text,
  updated_on date,
  deactivated_on date,
  reactivated_on date,
  -- True if the file says so by a word, as V3 does with or without a date; null otherwise.
  deactivated boolean check (deactivated),
  active boolean not null generated always as (
    deactivated is null
    and (deactivated_on is null or (reactivated_on is not null and reactivated_on >= deactivated_on))
  ) stored,
  origin text not null check (origin in ('nppes', 'registry')),
  -- The day whose state this is: the last one of the file, or that of the question. Nothing older
  -- replaces it.
  as_of date not null default current_date,
  -- Tells an unchanged row from a changed one without comparing columns.
  row_hash bigint not null,
  -- The import that wrote this row last (import_runs.number); null for what the registry said.
  import_number integer,
  imported_at timestamptz(3) not null default clock_timestamp()
);
-- Organizations at the same phone or address as a person.
create index providers_organizations_by_phone on providers (phone_key) where entity_type = 2;
create index providers_organizations_by_address on providers (address_key) where entity_type = 2;

-- Whether this NPI is no active individual: nothing is answered for it, whatever is stored. What
-- the registry did not know counts for a day; what NPPES says, until the next file. In plpgsql, as
-- is_suppressed, to be planned once for a connection and not anew in each statement that asks for
-- 60 addresses.
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

-- The address that an endpoint is, in the spelling of suppressions; of an endpoint that is none,
-- its text.
create function endpoint_address(an_endpoint text) returns text language sql immutable parallel safe as $$
  select regexp_replace(lower(trim(an_endpoint)), '^mailto:', '')
$$;

-- An erasure finds the addresses of a person wherever they stand.
create index provider_endpoints_by_address on provider_endpoints (endpoint_address(endpoint)) where endpoint like '%@%';

-- Names that organizations do business under.
create table provider_other_names (
  npi text collate "C" not null,
  name text not null,
  type_code text not null,
  import_number integer,
  primary key (npi, name, type_code)
);

-- Practice locations beside the primary one, of persons and organizations.
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

-- Where clinicians work, and for which groups they bill Medicare: CMS, "Doctors and Clinicians".
create table clinician_practices (
  npi text collate "C" not null,
  -- The group's in Medicare's enrollment system; empty for whoever bills for themselves.
  pac_id text collate "C" not null,
  -- Empty if not known.
  phone_key text not null,
  address_key text not null,
  -- The group's legal name, and how many bill for it.
  name text,
  members integer,
  import_number integer,
  primary key (npi, pac_id, phone_key, address_key)
);
create index clinician_practices_by_group on clinician_practices (pac_id) where pac_id <> '';

-- What an operator knows of employers' domains: of an organization or a person by NPI, of a group
-- by PAC id, else by the key of an organization's name.
create table employer_domains (
  key text collate "C" primary key check (key ~ '^(npi|pac_id|name):.'),
  domain text not null
);

-- An import that was interrupted is run again from the beginning: what it has written already is
-- what it would write.
create table import_runs (
  id text primary key,
  -- Stands in the rows that the import wrote: four bytes instead of the id's thirty.
  number integer not null generated always as identity unique,
  kind text not null check (kind in ('nppes', 'clinicians', 'domains', 'emails', 'suppressions')),
  -- The file's name without its folder, and what tells the same file again.
  file text not null,
  fingerprint text not null,
  state text not null check (state in ('running', 'done', 'failed')),
  counts jsonb not null default '{}',
  started_at timestamptz(3) not null default clock_timestamp(),
  finished_at timestamptz(3),
  check ((finished_at is null) = (state = 'running'))
);
