-- What is old is found in the order of its age.
create index requests_answers_by_age on requests (settled_at) where email is not null;
--> statement-breakpoint
create index batches_custom_data_by_age on batches (created_at) where custom_data is not null;
--> statement-breakpoint
-- What people asked of us, and what was done: the audit log as a register, so that it can't be rewritten either. Of an
-- objection the reason says who asked, and when.
create view privacy_requests as
  select id, details ->> 'received_at' as received_at, to_char(at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as done_at,
         details ->> 'asked_by' as asked_by,
         case action when 'privacy.export' then 'export' when 'privacy.erase' then 'erasure' else 'objection' end as kind,
         subject, actor, reason
    from audit_log
   where action in ('privacy.export', 'privacy.erase')
      or (action = 'suppressions.add' and details ->> 'origin' = 'operator');
--> statement-breakpoint
create index audit_log_privacy_requests on audit_log (id)
  where action in ('privacy.export', 'privacy.erase', 'suppressions.add');
