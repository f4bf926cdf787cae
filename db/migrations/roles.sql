-- Creates the roles and sets their permissions for all current tables. This file runs in one
-- transaction each time the migrations are run. A table that is not listed here is accessible only
-- to the owner. Roles are shared by all databases of the PostgreSQL cluster, but permissions are
-- granted in this database only.

do $$
declare
  name text;
begin
  foreach name in array array['npe_owner', 'npe_api', 'npe_worker', 'npe_operator', 'npe_viewer'] loop
    if not exists (select from pg_roles where rolname = name) then
      begin
        execute format('create role %I nologin', name);
      exception when duplicate_object or unique_violation then
        -- A migration of another database created the role at the same time.
      end;
    end if;
  end loop;
  if not pg_has_role('npe_owner', 'usage') then
    grant npe_owner to current_user;
  end if;
end $$;

-- Only migrations use the owner's rights directly. Other roles use them only through the functions
-- below.
grant usage, create on schema public to npe_owner;

do $$
declare
  object text;
begin
  for object in
    select format('table %s', oid::regclass) from pg_class
     where relnamespace = 'public'::regnamespace and relkind in ('r', 'v', 'm')
       and relname <> 'local_stack'
       and relowner <> 'npe_owner'::regrole
    union all
    select format('function %s', oid::regprocedure) from pg_proc
     where pronamespace = 'public'::regnamespace and proowner <> 'npe_owner'::regrole
  loop
    execute format('alter %s owner to npe_owner', object);
  end loop;
end $$;

revoke all on all tables in schema public from npe_api, npe_worker, npe_operator, npe_viewer;
grant usage on schema public, drizzle to npe_api, npe_worker, npe_operator, npe_viewer;
grant select on drizzle.__drizzle_migrations to npe_api, npe_worker, npe_operator, npe_viewer;

-- Derived rows, such as balances, ledger entries of requests, and counts, are written only by these
-- functions, with the owner's rights. receipts_of reads evidence with these rights, because
-- customers may see only its counts. The search path prevents a user's temporary tables from being
-- used instead of ours. The right to execute is revoked from public. Otherwise a user could create
-- a table with a trigger that calls such a function with forged rows.
do $$
declare
  name text;
begin
  foreach name in array array[
    'apply_ledger_entries', 'open_credit_balance', 'count_settled_requests', 'count_newly_settled_requests',
    'sum_settled_requests', 'require_charges', 'count_suppression_change', 'recompute_balance', 'rewrite_entitlement',
    'settle_hold', 'hold_balances', 'analyze_providers', 'forget_sandbox', 'open_sandbox',
    'receipts_of'
  ] loop
    execute format('alter function %I security definer set search_path = pg_catalog, public, pg_temp', name);
    execute format('revoke execute on function %I from public', name);
  end loop;
end $$;
grant execute on function recompute_balance, rewrite_entitlement, settle_hold, hold_balances, analyze_providers
  to npe_operator;
grant execute on function forget_sandbox to npe_worker;
grant execute on function open_sandbox to npe_api, npe_operator;
grant execute on function receipts_of to npe_api;

-- The ledger. Entries are inserted and never updated. Operators insert grants and adjustments, and
-- triggers insert the other kinds. The right to update organization_id of credit_balances is
-- granted only because PostgreSQL requires an update right to lock a row.
grant select on ledger_entries to npe_api, npe_worker, npe_operator;
grant insert on ledger_entries to npe_operator;
grant select, update (organization_id) on credit_balances to npe_api, npe_worker, npe_operator;
grant select, insert, update on entitlements to npe_api, npe_worker, npe_operator;
grant select on daily_usage to npe_api, npe_operator;
grant select, insert, delete on used_credits to npe_worker;
grant select on used_credits to npe_operator;
grant insert on audit_log to npe_api, npe_worker, npe_operator;
grant select on audit_log to npe_operator;

-- Accounts. Workers sign webhooks, the API shows and rotates the secrets on the console, and operators
-- issue them. Viewers can't read them.
grant select (id, sandbox_of, name, requests_per_minute, webhooks_suspended, created_at, suspended, closed_at, erased_at) on organizations to npe_api;
grant select (webhook_secret, previous_webhook_secret, previous_webhook_secret_expires_at),
      update (webhook_secret, previous_webhook_secret, previous_webhook_secret_expires_at)
   on organizations to npe_api;
grant select on organizations to npe_worker;
grant select, insert on secret_keys to npe_api, npe_worker, npe_operator;
grant select, insert, update on organizations to npe_operator;
-- No role may update the role or the organization of a key. Customers change their keys in the console.
grant select, insert, update (name, hint, hash, expires_at, revoked_at, leaked) on api_keys to npe_operator;
grant select, insert, update (name, expires_at, revoked_at, leaked) on api_keys to npe_api;
grant select (id, organization_id, revoked_at, expires_at) on api_keys to npe_worker;
grant select, insert, update, delete on console_sessions to npe_api;
grant select, delete on console_sessions to npe_worker;
grant select, insert, update on rate_windows to npe_api, npe_worker;
grant select on rate_windows to npe_operator;

-- Requests. The organization and the cost of a request never change. Triggers guard the other
-- columns. Workers submit the parts of uploads, so they insert the same rows as the API.
grant select, insert, update (started_at, updated_at) on batches to npe_api;
grant select, update on batches to npe_worker, npe_operator;
grant insert on batches to npe_worker;
grant select, insert on requests to npe_api;
grant insert on requests to npe_worker;
grant select, update (
  status, replayed, email, email_type, email_last_validated_at, reason, started_at, settled_at, lookup_id, erased_at,
  suppression_change
) on requests to npe_worker, npe_operator;
grant select, insert, update on idempotency_keys to npe_api;
grant select, insert, update, delete on idempotency_keys to npe_worker;
grant select, delete on idempotency_keys to npe_operator;

-- Uploads of the console. Workers do not need the files.
grant select, insert, update, delete on uploads, upload_parts to npe_api;
grant select (
  id, organization_id, api_key_id, expires_at, started_at, requested_type, submitted_at, stop_reason, checked_at,
  notify_email, notified_at
), update (submitted_at, stop_reason, checked_at, notified_at), delete on uploads to npe_worker;
grant select, insert, update on upload_parts to npe_worker;
grant select (id, organization_id, created_at, expires_at, started_at, submitted_at, stop_reason, checked_at) on uploads
  to npe_operator;
grant select on upload_parts to npe_operator;
grant delete on uploads, upload_parts to npe_operator;

-- Lookups, vendor calls, stored addresses, suppressions, and provider data.
grant select on suppression_changes to npe_api, npe_worker, npe_operator;
grant select on stored_emails, suppressions, providers to npe_api;
grant select (lookup_id, npi, email, email_type, verdict, validated_at) on candidates to npe_api;
grant select, insert, update, delete on vendor_attempts, source_slots, source_spend to npe_worker;
grant select, insert, update on lookups, source_health, source_rates to npe_worker;
grant delete on source_health to npe_worker;
grant select, insert, update, delete on source_prices to npe_worker;
grant select on source_prices to npe_operator;
grant select, update on lookups to npe_operator;
grant update (reason, returned) on vendor_attempts to npe_operator;
grant select on vendor_attempts, source_slots, source_health, source_rates, source_spend to npe_operator;
grant delete on source_slots to npe_operator;
grant select, insert, update, delete on candidates, stored_emails, email_checks, vendor_profiles
  to npe_worker, npe_operator;
grant select, insert on suppressions to npe_worker;
grant select, insert, update, delete on suppressions to npe_operator;
grant select, insert, update, delete on providers, provider_endpoints, provider_other_names, provider_locations
  to npe_worker, npe_operator;
grant select on clinician_practices, employer_domains to npe_worker;
grant select, insert, update, delete on clinician_practices, employer_domains to npe_operator;
grant select, insert, update on import_runs to npe_operator;

-- Webhooks.
grant select, insert, update on webhook_deliveries to npe_api;
grant select, insert, update on webhook_deliveries to npe_worker;
grant select, update on webhook_deliveries to npe_operator;
grant select on webhook_attempts to npe_api;
grant select, insert, update, delete on webhook_attempts, webhook_hosts, webhook_networks to npe_worker;
grant select, update on webhook_attempts to npe_operator;
grant select, delete on webhook_hosts to npe_operator;
grant select on webhook_blocks to npe_worker;
grant select, insert, update, delete on webhook_blocks to npe_operator;

-- Heartbeats of processes, and the state of the reconciler's sweep.
grant select on workers, sweeps to npe_api, npe_operator;
grant select, insert, update, delete on workers, sweeps to npe_worker;
grant insert, update (seen_at, stopped_at, errors) on workers to npe_api;
-- An API process records its Temporal namespace in the only row of sweeps.
grant insert, update (namespace) on sweeps to npe_api;

-- The health of PostgreSQL, and the regular work of operators. Without pg_read_all_stats, workers
-- and operators do not see how long transactions of other users have been open. Only a superuser
-- can grant it, so `doctor` reports if it is missing.
grant select on routines, import_runs to npe_worker;
grant select, update (ended_at, findings) on routines to npe_operator;
grant select on rights, granted_rights to npe_operator;
do $$
declare
  name text;
begin
  foreach name in array array['npe_worker', 'npe_operator'] loop
    if not pg_has_role(name, 'pg_read_all_stats', 'member') then
      execute format('grant pg_read_all_stats to %I', name);
    end if;
  end loop;
exception when insufficient_privilege then
end $$;

-- Viewers read what support needs. They read no address of a person, no webhook secret or hash of a
-- key, and nothing that may contain one: webhook URLs, receivers' responses, and custom_data.
grant select on
  ledger_entries, credit_balances, daily_usage, used_credits, audit_log, rate_windows, webhook_hosts,
  webhook_deliveries, webhook_blocks, lookups, vendor_attempts, source_slots, source_health,
  source_rates, source_spend, source_prices, workers, sweeps, routines, import_runs
  to npe_viewer;
do $$
declare
  tab text;
  hidden text;
  columns text;
begin
  for tab, hidden in values
    ('organizations', '{webhook_secret, previous_webhook_secret}'),
    ('api_keys', '{hash}'),
    ('batches', '{webhook_url, custom_data}'),
    ('requests', '{email}'),
    ('email_checks', '{email}'),
    ('webhook_attempts', '{response_excerpt}')
  loop
    select string_agg(quote_ident(attname), ', ') into columns
      from pg_attribute
     where attrelid = tab::regclass and attnum > 0 and not attisdropped and attname <> all(hidden::text[]);
    execute format('grant select (%s) on %I to npe_viewer', columns, tab);
  end loop;
end $$;

refresh materialized view granted_rights;
