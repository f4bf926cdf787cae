-- Webhooks: where each delivery is in its schedule, resends, receivers that are away, and a log
-- that forgets.

create table webhook_deliveries (
  id text primary key,
  batch_id text not null references batches,
  request_id text references requests,
  state text not null check (state in ('pending', 'delivered', 'failed', 'none')),
  attempts integer not null default 0,
  -- How often it was sent again from the start of the schedule: a round of its own each time.
  resends integer not null default 0,
  -- The place in the schedule of the attempt that comes next, from 0, and since when it has been
  -- due by the schedule.
  step smallint not null default 0,
  step_at timestamptz(3),
  -- Before that nothing is sent; later than step_at where the receiver was away.
  due_at timestamptz(3),
  -- An attempt is being made until then at most; it may not be made twice at once.
  leased_until timestamptz(3),
  -- Of which host it is: room for deliveries is counted here, across workers.
  leased_host text,
  -- When the sweep last saw to it that it has its workflow.
  checked_at timestamptz(3),
  -- When its customer sent it again, the newest first, at most ten: that is how often one may
  -- within an hour.
  customer_resends timestamptz(3)[] not null default '{}',
  -- The attempts with the lowest numbers that the log no longer holds.
  forgotten integer not null default 0,
  created_at timestamptz(3) not null,
  decided_at timestamptz(3),
  unique nulls not distinct (batch_id, request_id),
  check ((decided_at is null) = (state in ('pending', 'none'))),
  constraint webhook_deliveries_waits_only_pending check (state = 'pending' or num_nonnulls(step_at, due_at) = 0),
  constraint webhook_deliveries_customer_resends check (cardinality(customer_resends) <= 10),
  constraint webhook_deliveries_forgotten check (forgotten between 0 and attempts)
);
create index webhook_deliveries_pending on webhook_deliveries (batch_id) where state = 'pending';
-- A delivery that its first attempt did not decide has a workflow of its own. The sweep looks after
-- all that could go on, of first rounds too.
create index webhook_deliveries_to_look_after on webhook_deliveries (greatest(checked_at, due_at, created_at))
  where state = 'pending';
create index webhook_deliveries_failed on webhook_deliveries (decided_at) where state = 'failed';
create index webhook_deliveries_leased on webhook_deliveries (leased_until) where leased_until is not null;

create function touch_batch_of_delivery() returns trigger language plpgsql as $$
begin
  update batches set updated_at = later(updated_at, clock_timestamp()) where id = new.batch_id;
  return null;
end $$;

create trigger webhook_deliveries_touch_batch after update of state on webhook_deliveries
  for each row when (old.state is distinct from new.state) execute function touch_batch_of_delivery();

create table webhook_attempts (
  delivery_id text not null references webhook_deliveries,
  n integer not null,
  started_at timestamptz(3) not null,
  duration_ms integer not null,
  status_code smallint,
  -- Why it was no plain 2xx; beside a status too, where that alone does not say it.
  reason text,
  response_excerpt bytea check (octet_length(response_excerpt) <= 1024),
  primary key (delivery_id, n)
);
create index webhook_attempts_by_age on webhook_attempts (started_at);

-- Receivers that do not answer, one row per organization and host: per organization, so that no
-- path of one can hold up the deliveries of another to the same host. The row is also the line of
-- those that wait for a host which answers. It stays when a host is back, without failures, until
-- that is long ago.
create table webhook_hosts (
  organization_id text not null references organizations,
  host text not null,
  -- Attempts in a row that got no answer.
  failures integer not null,
  failing_since timestamptz(3),
  last_reason text,
  -- Set once the breaker is open: the next trial may be made then.
  open_until timestamptz(3),
  times_opened integer not null default 0,
  -- Begins with each opening.
  era integer not null default 0,
  -- When the last of those that wait for it looks again.
  turn_at timestamptz(3),
  -- When the host last answered 2xx to this organization, to the day; null for never.
  accepted_at timestamptz(3),
  -- From where it has, the newest first. Attempts to any other address are counted in
  -- webhook_networks: the owner of the name may lead it to a machine that never agreed.
  proven_networks cidr[] not null default '{}',
  primary key (organization_id, host)
);
create index webhook_hosts_by_age on webhook_hosts (greatest(failing_since, open_until, turn_at, accepted_at));

-- Deliveries are no weapon: one address gets few attempts from receivers that have not proven
-- themselves, whatever the organization, the name, and the port. A row has the allowance of one
-- network.
create table webhook_networks (
  network cidr primary key,
  -- The allowance is whole again then.
  spent_until timestamptz(3) not null
);
create index webhook_networks_by_age on webhook_networks (spent_until);

-- The network that counts for an address. One machine can have all addresses of a /64 of IPv6.
create function webhook_network(address inet) returns cidr language sql immutable parallel safe as $$
  select network(set_masklen(address, case family(address) when 4 then 32 else 64 end))
$$;

-- Operators say where nothing is sent.
create table webhook_blocks (
  -- A range of addresses as 192.0.2.0/24, or a host with all names below it.
  target text primary key check (target ~ '^[0-9a-z.:_-]+(/[0-9]+)?$'),
  reason text not null,
  created_at timestamptz(3) not null default clock_timestamp()
);
