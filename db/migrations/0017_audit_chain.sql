-- Each entry of the audit log holds a hash of itself and of the one before, and the database's user who wrote it: whoever
-- rewrites, removes or slips in an entry has to rewrite all that follow.

alter table audit_log
  -- Null in entries from before it was noted.
  add column db_user text,
  add column hash bytea;
--> statement-breakpoint
create function audit_hash(previous bytea, entry audit_log) returns bytea language sql stable as $$
  select sha256(coalesce(previous, '') || convert_to(jsonb_build_array(
    entry.id, extract(epoch from entry.at), entry.actor, entry.action, entry.organization_id, entry.subject,
    entry.reason, entry.details, entry.db_user)::text, 'UTF8'))
$$;
--> statement-breakpoint
create function chain_audit_entry() returns trigger language plpgsql as $$
declare
  last audit_log;
begin
  -- One after the other, until the end of the transaction. Whatever was given, the number is the next and the user is true.
  perform pg_advisory_xact_lock('audit_log'::regclass::oid::bigint);
  select * into last from audit_log order by id desc limit 1;
  new.id := coalesce(last.id, 0) + 1;
  new.db_user := session_user;
  new.hash := audit_hash(last.hash, new);
  return new;
end $$;
--> statement-breakpoint
create trigger audit_log_chain before insert on audit_log for each row execute function chain_audit_entry();
--> statement-breakpoint
alter table audit_log disable trigger audit_log_append_only;
--> statement-breakpoint
do $$
declare
  entry audit_log;
  previous bytea;
begin
  for entry in select * from audit_log order by id loop
    previous := audit_hash(previous, entry);
    update audit_log set hash = previous where id = entry.id;
  end loop;
end $$;
--> statement-breakpoint
alter table audit_log enable trigger audit_log_append_only;
