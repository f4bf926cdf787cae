-- Processes that tell of each other, and what the roles of roles.sql can't do themselves.

-- Worker processes tell here that they live, so that API, doctor and the other workers know whom Temporal can reach.
create table workers (
  id text primary key,
  namespace text not null,
  task_queue text not null,
  build_id text not null,
  seen_at timestamptz(3) not null default clock_timestamp(),
  stopped_at timestamptz(3)
);

-- The sweep is a loop in every worker process: this row says whose turn it is, one process of all per interval. It is
-- written by the first turn.
create table sweeps (
  one boolean primary key default true check (one),
  -- Before that nobody sweeps.
  due_at timestamptz(3) not null,
  -- When a sweep last came to its end.
  swept_at timestamptz(3),
  -- In which namespace the API starts workflows: a worker of another one cannot say whether they run.
  namespace text
);

-- The functions below are the owner's, for operators. Each derives rows from the books, so that calling it more often than
-- needed changes nothing.

create function recompute_balance(an_organization text) returns void language sql as $$
  insert into credit_balances (organization_id, total, available, held, used)
  select an_organization, coalesce(-sum(granted), 0), coalesce(sum(available), 0), coalesce(sum(held), 0), coalesce(sum(used), 0)
    from ledger_entries where organization_id = an_organization
      on conflict (organization_id) do update
     set total = excluded.total, available = excluded.available, held = excluded.held, used = excluded.used
$$;

-- Entitlements follow from charges: the newest one of its kind, or none.
create function rewrite_entitlement(an_organization text, an_npi text, a_type text) returns void language sql as $$
  delete from entitlements where organization_id = an_organization and npi = an_npi and email_type = a_type;
  insert into entitlements (organization_id, npi, email_type, request_id, charged_at)
  select organization_id, npi, email_type, id, settled_at from requests
   where organization_id = an_organization and npi = an_npi and email_type = a_type and credits_used > 0
   order by settled_at desc, id desc limit 1
$$;

-- Until the end of the transaction nobody submits or settles.
create function hold_balances() returns void language plpgsql as $$
begin
  lock table credit_balances in exclusive mode;
end $$;

create function analyze_providers() returns void language plpgsql as $$
begin
  analyze providers, provider_endpoints, provider_other_names, provider_locations, clinician_practices;
end $$;
