-- What a person had erased stays erased, whoever writes: NPPES files and the registry repeat their endpoints.

-- The address that an endpoint is, in the spelling of suppressions; of an endpoint that is none, its text.
create function endpoint_address(an_endpoint text) returns text language sql immutable parallel safe as $$
  select regexp_replace(lower(trim(an_endpoint)), '^mailto:', '')
$$;
--> statement-breakpoint
drop index provider_endpoints_by_address;
--> statement-breakpoint
create index provider_endpoints_by_address on provider_endpoints (endpoint_address(endpoint)) where endpoint like '%@%';
--> statement-breakpoint
-- Whether an erasure left a tombstone for this NPI, or for this address in lower case.
create function is_erased(an_npi text, an_email text) returns boolean language sql stable parallel safe as $$
  select exists (
    select from suppressions where kind = 'npi' and value = an_npi and origin = 'erasure'
    union all
    select from suppressions
     where kind = 'email' and value = encode(sha256(convert_to(an_email, 'UTF8')), 'hex') and origin = 'erasure'
  )
$$;
--> statement-breakpoint
create function skip_erased_endpoint() returns trigger language plpgsql as $$
begin
  if is_erased(new.npi, endpoint_address(new.endpoint)) then
    return null;
  end if;
  return new;
end $$;
--> statement-breakpoint
create trigger provider_endpoints_skip_erased before insert on provider_endpoints
  for each row when (new.endpoint like '%@%') execute function skip_erased_endpoint();
--> statement-breakpoint
-- A key whose secret got out is not given back by mistake.
alter table api_keys
  add column leaked boolean not null default false,
  add constraint api_keys_leaked_is_revoked check (not leaked or revoked_at is not null);
--> statement-breakpoint
-- While it is set no key of the organization is let in; the keys themselves stay as they are.
alter table organizations add column suspended boolean not null default false;
--> statement-breakpoint
-- Wakes the polls that wait with a key, so that none outlives it.
create trigger api_keys_announce_change after update on api_keys
  for each row when (old.revoked_at is distinct from new.revoked_at or old.expires_at is distinct from new.expires_at)
  execute function announce_batch_change();
--> statement-breakpoint
create trigger organizations_announce_suspension after update on organizations
  for each row when (old.suspended is distinct from new.suspended)
  execute function announce_batch_change();
--> statement-breakpoint
-- An era of a breaker ends with each opening and each closing: how a call goes that was let through in an earlier one
-- says nothing new. While it is open, open_until is when the next trial call may be made.
alter table source_health
  add column era integer not null default 0,
  drop column times_opened,
  drop column trial_until;
--> statement-breakpoint
-- Begins with each opening. The row stays when a host is back, without failures, until that is long ago.
alter table webhook_hosts add column era integer not null default 0;
