-- Webhooks: where each delivery is in its schedule, resends, receivers that are away, and a log that forgets.

-- Why an attempt was no plain 2xx; beside a status too, where that alone does not say it.
alter table webhook_attempts rename column error_code to reason;
--> statement-breakpoint
-- Resends have no limit.
alter table webhook_attempts alter column n type integer;
--> statement-breakpoint
alter table webhook_deliveries
  alter column attempts type integer,
  -- How often it was sent again from the start of the schedule: a round of its own each time.
  add column resends integer not null default 0,
  -- The place in the schedule of the attempt that comes next, from 0, and since when it has been due by the schedule.
  add column step smallint not null default 0,
  add column step_at timestamptz(3),
  -- Before that nothing is sent; later than step_at where the receiver was away.
  add column due_at timestamptz(3),
  -- An attempt is being made until then at most; it may not be made twice at once.
  add column leased_until timestamptz(3),
  -- When the sweep last saw to it that a resend has its workflow.
  add column checked_at timestamptz(3),
  -- The attempts with the lowest numbers that the log no longer holds.
  add column forgotten integer not null default 0,
  add constraint webhook_deliveries_waits_only_pending check (state = 'pending' or num_nonnulls(step_at, due_at) = 0),
  add constraint webhook_deliveries_forgotten check (forgotten between 0 and attempts);
--> statement-breakpoint
update webhook_deliveries set step = attempts where state = 'pending' and attempts > 0;
--> statement-breakpoint
create index webhook_deliveries_resent on webhook_deliveries (coalesce(checked_at, due_at)) where state = 'pending' and resends > 0;
--> statement-breakpoint
create index webhook_deliveries_failed on webhook_deliveries (decided_at) where state = 'failed';
--> statement-breakpoint
create index webhook_attempts_by_age on webhook_attempts (started_at);
--> statement-breakpoint
-- Receivers that do not answer, one row per organization and host while that lasts. Per organization, so that no
-- path of one can hold up the deliveries of another to the same host.
create table webhook_hosts (
  organization_id text not null references organizations,
  host text not null,
  -- Attempts in a row that got no answer.
  failures integer not null,
  failing_since timestamptz(3) not null,
  last_reason text not null,
  -- Set once the breaker is open: the next trial may be made then.
  open_until timestamptz(3),
  times_opened integer not null default 0,
  -- While it is open one attempt at a time is made; this one ends, or has died, by then.
  trial_until timestamptz(3),
  -- When the last of those that wait for it looks again.
  turn_at timestamptz(3),
  primary key (organization_id, host)
);
