-- A delivery that its first attempt did not decide has a workflow of its own. The sweep looks after all that could go on,
-- of first rounds too.
drop index webhook_deliveries_resent;
--> statement-breakpoint
create index webhook_deliveries_to_look_after on webhook_deliveries (greatest(checked_at, due_at, created_at))
  where state = 'pending';
