-- What the roles of roles.sql can't do themselves, because it is theirs only in this form: each derives rows from the
-- books, so that calling it more often than needed changes nothing.

create function recompute_balance(an_organization text) returns void language sql as $$
  insert into credit_balances (organization_id, total, available, held, used)
  select an_organization, coalesce(-sum(granted), 0), coalesce(sum(available), 0), coalesce(sum(held), 0), coalesce(sum(used), 0)
    from ledger_entries where organization_id = an_organization
      on conflict (organization_id) do update
     set total = excluded.total, available = excluded.available, held = excluded.held, used = excluded.used
$$;
--> statement-breakpoint
-- Entitlements follow from charges: the newest one of its kind, or none.
create function rewrite_entitlement(an_organization text, an_npi text, a_type text) returns void language sql as $$
  delete from entitlements where organization_id = an_organization and npi = an_npi and email_type = a_type;
  insert into entitlements (organization_id, npi, email_type, request_id, charged_at)
  select organization_id, npi, email_type, id, settled_at from requests
   where organization_id = an_organization and npi = an_npi and email_type = a_type and credits_used > 0
   order by settled_at desc, id desc limit 1
$$;
--> statement-breakpoint
-- Until the end of the transaction nobody submits or settles.
create function hold_balances() returns void language plpgsql as $$
begin
  lock table credit_balances in exclusive mode;
end $$;
--> statement-breakpoint
create function analyze_providers() returns void language plpgsql as $$
begin
  analyze providers, provider_endpoints, provider_other_names, provider_locations;
end $$;
--> statement-breakpoint
-- Only operators bring credits into the world; everybody else moves those that are there.
create function require_operator() returns trigger language plpgsql as $$
begin
  if not pg_has_role('npe_operator', 'usage') then
    raise exception 'only an operator grants or adjusts credits' using errcode = 'insufficient_privilege';
  end if;
  return new;
end $$;
--> statement-breakpoint
create trigger ledger_entries_funded_by_operators before insert on ledger_entries
  for each row when (new.kind in ('grant', 'adjustment')) execute function require_operator();
--> statement-breakpoint
create trigger audit_log_no_truncate before truncate on audit_log
  for each statement execute function refuse_change();
