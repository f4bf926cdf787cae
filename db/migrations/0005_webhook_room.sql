-- Room for deliveries is counted here, across workers: of which host the attempt is that is being made.
alter table webhook_deliveries add column leased_host text;
--> statement-breakpoint
create index webhook_deliveries_leased on webhook_deliveries (leased_until) where leased_until is not null;
--> statement-breakpoint
-- A row is also the line of those that wait for a host which answers.
alter table webhook_hosts
  alter column failing_since drop not null,
  alter column last_reason drop not null;
