-- An organization has room for so many lookups at once; its other requests wait in their rows, by their deadline. What
-- is open already, and what the release before accepts, has room.
alter table requests add column has_room boolean not null default true;
--> statement-breakpoint
create index requests_in_line on requests (organization_id, has_room, deadline_at) where settled_at is null;
--> statement-breakpoint
-- The outbox: since when the batch's workflow is to be started, or told that more of its requests have room. Null if
-- it has nothing to do that it does not know of, as while all of its requests wait.
alter table batches add column wake_at timestamptz(3);
--> statement-breakpoint
alter table batches alter column wake_at set default clock_timestamp();
--> statement-breakpoint
update batches set wake_at = created_at where started_at is null;
--> statement-breakpoint
create index batches_to_wake on batches (wake_at) where wake_at is not null;
--> statement-breakpoint
drop index batches_not_started;
--> statement-breakpoint
-- In which namespace the API starts workflows: a worker of another one cannot say whether they run.
alter table sweeps add column namespace text;
