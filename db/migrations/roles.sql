-- Who may do what. Run after every migration, in one transaction, so that it is the whole truth
-- about the tables as they are now: a table that is not named here is the owner's alone. Roles
-- belong to the cluster, grants to this database.

do $$
declare
  name text;
begin
  foreach name in array array['npe_owner', 'npe_api', 'npe_worker', 'npe_operator'] loop
    if not exists (select from pg_roles where rolname = name) then
      begin
        execute format('create role %I nologin', name);
      exception when duplicate_object or unique_violation then
        -- A migrator of another database was faster.
      end;
    end if;
  end loop;
  if not pg_has_role('npe_owner', 'usage') then
    grant npe_owner to current_user;
  end if;
end $$;

-- Nobody logs in as the owner but to migrate. What its functions below do for others is all that
-- others can't.
grant usage, create on schema public to npe_owner;

do $$
declare
  object text;
begin
  for object in
    select format('table %s', oid::regclass) from pg_class
     where relnamespace = 'public'::regnamespace and relkind in ('r', 'v') and relname <> 'local_stack'
       and relowner <> 'npe_owner'::regrole
    union all
    select format('function %s', oid::regprocedure) from pg_proc
     where pronamespace = 'public'::regnamespace and proowner <> 'npe_owner'::regrole
  loop
    execute format('alter %s owner to npe_owner', object);
  end loop;
end $$;

revoke all on all tables in schema public from npe_api, npe_worker, npe_operator;
grant usage on schema public, drizzle to npe_api, npe_worker, npe_operator;
grant select on drizzle.__drizzle_migrations to npe_api, npe_worker, npe_operator;

-- What follows from rows that a role may write, it may not write itself: balances from entries,
-- entries and counts from requests. These functions do, and see no temporary table for ours. Not
-- for everybody: a trigger on a table of one's own would run them on rows of one's own.
do $$
declare
  name text;
begin
  foreach name in array array[
    'apply_ledger_entries', 'open_credit_balance', 'count_settled_requests', 'count_newly_settled_requests',
    'require_charges', 'count_suppression_change', 'chain_audit_entry', 'recompute_balance', 'rewrite_entitlement',
    'release_hold', 'hold_balances', 'analyze_providers'
  ] loop
    execute format('alter function %I security definer set search_path = pg_catalog, public, pg_temp', name);
    execute format('revoke execute on function %I from public', name);
  end loop;
end $$;
grant execute on function recompute_balance, rewrite_entitlement, release_hold, hold_balances, analyze_providers
  to npe_operator;

-- The books: entries are added, never changed; by operators those that fund, all others by
-- triggers. An id that can't change is what it takes to lock a balance's row.
grant select on ledger_entries to npe_api, npe_worker, npe_operator;
grant insert on ledger_entries to npe_operator;
grant select, update (organization_id) on credit_balances to npe_api, npe_worker, npe_operator;
grant select, insert, update on entitlements to npe_api, npe_worker, npe_operator;
grant select, insert, delete on used_credits to npe_worker;
grant select on used_credits to npe_operator;
grant insert on audit_log to npe_api, npe_worker, npe_operator;
grant select on audit_log to npe_operator;

-- Accounts. Only who signs or hands out webhook secrets reads them.
grant select (id, name, requests_per_minute, webhooks_suspended, created_at, suspended) on organizations to npe_api;
grant select on organizations to npe_worker;
grant select, insert on secret_keys to npe_worker, npe_operator;
grant select, insert, update on organizations, api_keys to npe_operator;
grant select on api_keys to npe_api;
grant select, insert, update on rate_windows to npe_api;
grant select on rate_windows to npe_operator;

-- Requests. Whose they are and what they cost never changes; the rest is guarded by triggers.
grant select, insert, update (started_at, updated_at) on batches to npe_api;
grant select, update on batches to npe_worker, npe_operator;
grant select, insert on requests to npe_api;
grant select, update (
  status, replayed, email, email_type, email_last_validated_at, reason, started_at, settled_at, lookup_id, erased_at,
  suppression_change
) on requests to npe_worker, npe_operator;
grant select, insert, update on idempotency_keys to npe_api;
-- Who deletes has to lock.
grant select, delete, update (expires_at) on idempotency_keys to npe_worker;
grant select on idempotency_keys to npe_operator;

-- Lookups and what they found.
grant select on suppression_changes to npe_api, npe_worker, npe_operator;
grant select on stored_emails, suppressions, providers to npe_api;
grant select (lookup_id, npi, email, kind) on email_checks to npe_api;
grant select, insert, update, delete on vendor_attempts, source_slots, source_spend to npe_worker;
grant select, insert, update on lookups, source_health, source_rates to npe_worker;
grant select, update on lookups to npe_operator;
grant update (reason) on vendor_attempts to npe_operator;
grant select on vendor_attempts, source_slots, source_health, source_rates, source_spend to npe_operator;
grant delete on source_slots to npe_operator;
grant select, insert, update, delete on stored_emails, email_checks to npe_worker, npe_operator;
grant select, insert on suppressions to npe_worker;
grant select, insert, update, delete on suppressions to npe_operator;
grant select, insert, update, delete on providers, provider_endpoints, provider_other_names, provider_locations
  to npe_worker, npe_operator;
grant select on clinician_practices, employer_domains to npe_worker;
grant select, insert, update, delete on clinician_practices, employer_domains to npe_operator;
grant select, insert, update on import_runs to npe_operator;

-- Webhooks.
grant select, insert, update on webhook_deliveries to npe_api;
grant select, update on webhook_deliveries to npe_worker, npe_operator;
grant select on webhook_attempts to npe_api;
grant select, insert, update, delete on webhook_attempts, webhook_hosts, webhook_networks to npe_worker;
grant select, update on webhook_attempts to npe_operator;
grant select on webhook_hosts to npe_operator;
grant select on webhook_blocks to npe_worker;
grant select, insert, update, delete on webhook_blocks to npe_operator;

-- Processes.
grant select on workers, sweeps to npe_api, npe_operator;
grant select, insert, update, delete on workers, sweeps to npe_worker;
grant insert, update (seen_at, stopped_at) on workers to npe_api;
-- Where an API starts workflows, in the one row that there is.
grant insert, update (namespace) on sweeps to npe_api;
