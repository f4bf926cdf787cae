-- The permissions of each role. It runs after every migration in one transaction, and sets the
-- permissions of all current tables. A table that is not listed here is accessible only to the
-- owner. Roles belong to the cluster, grants to this database.

do $$
declare
  name text;
begin
  foreach name in array array['npe_owner', 'npe_api', 'npe_worker', 'npe_operator'] loop
    if not exists (select from pg_roles where rolname = name) then
      begin
        execute format('create role %I nologin', name);
      exception when duplicate_object or unique_violation then
        -- The migrator of another database created it first.
      end;
    end if;
  end loop;
  if not pg_has_role('npe_owner', 'usage') then
    grant npe_owner to current_user;
  end if;
end $$;

-- Only migrations log in as the owner. Other roles use its rights only through the functions below.
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

-- Derived rows are written only by these functions, with the owner's rights: balances from entries,
-- and entries and counts from requests. The search path keeps temporary tables from replacing ours.
-- Execution is revoked from public, because a trigger on a user's own table could run them on
-- forged rows.
do $$
declare
  name text;
begin
  foreach name in array array[
    'apply_ledger_entries', 'open_credit_balance', 'count_settled_requests', 'count_newly_settled_requests',
    'require_charges', 'count_suppression_change', 'recompute_balance', 'rewrite_entitlement',
    'release_hold', 'hold_balances', 'analyze_providers'
  ] loop
    execute format('alter function %I security definer set search_path = pg_catalog, public, pg_temp', name);
    execute format('revoke execute on function %I from public', name);
  end loop;
end $$;
grant execute on function recompute_balance, rewrite_entitlement, release_hold, hold_balances, analyze_providers
  to npe_operator;

-- The ledger. Entries are inserted and never updated. Operators insert funding, and triggers insert
-- the other kinds. The update right on an id that cannot change is needed to lock a balance's row.
grant select on ledger_entries to npe_api, npe_worker, npe_operator;
grant insert on ledger_entries to npe_operator;
grant select, update (organization_id) on credit_balances to npe_api, npe_worker, npe_operator;
grant select, insert, update on entitlements to npe_api, npe_worker, npe_operator;
grant select, insert, delete on used_credits to npe_worker;
grant select on used_credits to npe_operator;
grant insert on audit_log to npe_api, npe_worker, npe_operator;
grant select on audit_log to npe_operator;

-- Accounts. Webhook secrets are readable only by the roles that sign or issue them.
grant select (id, name, requests_per_minute, webhooks_suspended, created_at, suspended) on organizations to npe_api;
grant select on organizations to npe_worker;
grant select, insert on secret_keys to npe_worker, npe_operator;
grant select, insert, update on organizations, api_keys to npe_operator;
grant select on api_keys to npe_api;
grant select, insert, update on rate_windows to npe_api;
grant select on rate_windows to npe_operator;

-- Requests. The owner and the cost never change. Triggers guard the other columns.
grant select, insert, update (started_at, updated_at) on batches to npe_api;
grant select, update on batches to npe_worker, npe_operator;
grant select, insert on requests to npe_api;
grant select, update (
  status, replayed, email, email_type, email_last_validated_at, reason, started_at, settled_at, lookup_id, erased_at,
  suppression_change
) on requests to npe_worker, npe_operator;
grant select, insert, update on idempotency_keys to npe_api;
-- The update right is needed to lock rows before deleting them.
grant select, delete, update (expires_at) on idempotency_keys to npe_worker;
grant select on idempotency_keys to npe_operator;

-- Lookups and their results.
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
-- The namespace in which an API starts workflows, in the only row of sweeps.
grant insert, update (namespace) on sweeps to npe_api;
