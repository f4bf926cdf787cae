-- Operations: the doctor's repairs, regular work, and the rights of our roles.

-- The repairs are functions for operators. They run with the rights of the owner, because the operator role may not
-- make these changes directly. Each repair derives rows from the ledger or the requests, so that
-- repeating it changes nothing. A repair returns what it changed.

create function recompute_balance(an_organization text) returns jsonb language sql as $$
  with was as (select * from credit_balances where organization_id = an_organization), now as (
    insert into credit_balances (organization_id, total, available, held, used)
    select an_organization, coalesce(-sum(granted), 0), coalesce(sum(available), 0), coalesce(sum(held), 0),
           coalesce(sum(used), 0)
      from ledger_entries where organization_id = an_organization
        on conflict (organization_id) do update
       set total = excluded.total, available = excluded.available, held = excluded.held, used = excluded.used
    returning *
  )
  select jsonb_build_object(
      'total_before', was.total, 'total', now.total, 'available_before', was.available, 'available', now.available,
      'held_before', was.held, 'held', now.held, 'used_before', was.used, 'used', now.used)
    from now left join was using (organization_id)
$$;

-- Rewrites the entitlement of an organization for an NPI and email type from the newest charged
-- request, or deletes it if there is no such request. Returns null if nothing changes.
create function rewrite_entitlement(an_organization text, an_npi text, a_type text) returns jsonb language sql as $$
  with key as (select an_organization as organization_id, an_npi as npi, a_type as email_type),
  was as (select * from entitlements join key using (organization_id, npi, email_type)),
  earned as (
    select id, settled_at from requests join key using (organization_id, npi, email_type)
     where credits_used > 0 order by settled_at desc, id desc limit 1
  ), gone as (
    delete from entitlements e using was
     where (e.organization_id, e.npi, e.email_type) = (was.organization_id, was.npi, was.email_type)
       and not exists (select from earned)
  ), written as (
    insert into entitlements (organization_id, npi, email_type, request_id, charged_at)
    select key.*, earned.* from key, earned
        on conflict (organization_id, npi, email_type) do update
       set request_id = excluded.request_id, charged_at = excluded.charged_at
  )
  select jsonb_build_object('charge_before', was.request_id, 'charged_at_before', was.charged_at,
                            'charge', earned.id, 'charged_at', earned.settled_at)
    from key left join was on true left join earned on true
   where (was.request_id, was.charged_at) is distinct from (earned.id, earned.settled_at)
$$;

-- Charges or releases the held credits of a final request for which neither was done. A charge gets
-- the time of the result.
create function settle_hold(a_request text) returns jsonb language sql as $$
  insert into ledger_entries (organization_id, request_id, kind, amount, created_at)
  select r.organization_id, r.id, settlement.*
    from requests r
    join ledger_entries hold on hold.request_id = r.id and hold.kind = 'hold'
   cross join lateral (
      select 'charge', hold.amount, r.settled_at where r.credits_used = hold.amount
      union all
      select 'release', hold.amount, clock_timestamp() where r.credits_used = 0
    ) settlement
   where r.id = a_request and r.settled_at is not null
     and not exists (select from ledger_entries where request_id = r.id and kind <> 'hold')
  returning jsonb_build_object(kind, amount)
$$;

-- Blocks all submits and settlements until the calling transaction ends.
create function hold_balances() returns void language plpgsql as $$
begin
  lock table credit_balances in exclusive mode;
end $$;

create function analyze_providers() returns void language plpgsql as $$
begin
  analyze providers, provider_endpoints, provider_other_names, provider_locations, clinician_practices;
end $$;

-- A new database counts as examined and backed up when it was made.
insert into routines (kind) values ('doctor'), ('backup');

-- Fails with the code 53100 if the disk is full: 64 kB of memory are too few, so PostgreSQL writes a
-- temporary file of a megabyte.
create function write_temporary_file() returns bigint language sql set work_mem = '64kB' as $$
  select count(*) from generate_series(1, 40000)
$$;

-- Lists the rights of our roles on tables and columns.
create view rights as
  select a.grantee::regrole::text as role, lower(a.privilege_type) as privilege, o.name
    from (
      select relnamespace, relname::text as name, relacl as acl from pg_class
      union all
      select relnamespace, relname || '.' || attname, attacl from pg_attribute join pg_class on pg_class.oid = attrelid
    ) o
   cross join aclexplode(o.acl) a
   where o.relnamespace = 'public'::regnamespace
     and a.grantee in (select oid from pg_roles where rolname in ('npe_api', 'npe_worker', 'npe_operator', 'npe_viewer'));

-- Stores the rights that the last migration granted. The doctor reports rights that were revoked
-- since.
create materialized view granted_rights as select * from rights with no data;
