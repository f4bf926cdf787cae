-- Deliveries are no weapon: a host that has taken none yet is sent few, and operators say where nothing is sent.
alter table webhook_hosts
  -- When it last answered 2xx, to the day; null for never.
  add column accepted_at timestamptz(3),
  -- Until it has, attempts are spent from an allowance, which is whole again then.
  add column spent_until timestamptz(3);
--> statement-breakpoint
create table webhook_blocks (
  -- A range of addresses as 192.0.2.0/24, or a host with all names below it.
  target text primary key check (target ~ '^[0-9a-z.:_-]+(/[0-9]+)?$'),
  reason text not null,
  created_at timestamptz(3) not null default clock_timestamp()
);
