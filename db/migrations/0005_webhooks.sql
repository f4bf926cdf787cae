-- Webhooks: deliveries with their place in the schedule, the attempts log, the health of receivers,
-- and blocked targets.

create table webhook_deliveries (
  id text primary key,
  batch_id text not null references batches,
  request_id text references requests,
  state text not null check (state in ('pending', 'delivered', 'failed', 'none')),
  attempts integer not null default 0,
  -- The number of resends. Each one starts the schedule again and is a separate round.
  resends integer not null default 0,
  -- The schedule step of the next attempt, from 0, and the time since which it has been due by the
  -- schedule.
  step smallint not null default 0,
  step_at timestamptz(3),
  -- The earliest time of the next attempt. It is later than step_at if the receiver was
  -- unavailable.
  due_at timestamptz(3),
  -- The end of the running attempt's lease, which prevents two attempts at once.
  leased_until timestamptz(3),
  -- The host of the leased attempt. Concurrent attempts per host are counted by it, across workers.
  leased_host text,
  -- When the sweep last checked that the delivery has its workflow.
  checked_at timestamptz(3),
  -- The times of the customer's resends, newest first. There are at most ten, the limit per hour.
  customer_resends timestamptz(3)[] not null default '{}',
  -- The number of attempts that the log no longer holds. They are the ones with the lowest numbers.
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
-- Used by the sweep, which checks all deliveries that could continue, including those in their
-- first round. A delivery that its first attempt did not decide has its own workflow.
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
  -- Why the attempt failed or was not a plain 2xx. Set next to a status code if that does not say
  -- enough.
  reason text,
  response_excerpt bytea check (octet_length(response_excerpt) <= 1024),
  primary key (delivery_id, n)
);
create index webhook_attempts_by_age on webhook_attempts (started_at);

-- The health of receivers. There is a row per organization and host, so that a broken path of one
-- organization does not delay the deliveries of another one to the same host. The row is also the
-- queue of deliveries that wait for a working host. It stays without failures after the host works
-- again, until retention removes it.
create table webhook_hosts (
  organization_id text not null references organizations,
  host text not null,
  -- The number of attempts in a row without a response.
  failures integer not null,
  failing_since timestamptz(3),
  last_reason text,
  -- The time of the next trial attempt; null while the breaker is closed.
  open_until timestamptz(3),
  times_opened integer not null default 0,
  -- Increased with each opening.
  era integer not null default 0,
  -- When the last delivery in its queue tries again.
  turn_at timestamptz(3),
  -- When the host last returned 2xx to this organization, rounded to the day; null for never.
  accepted_at timestamptz(3),
  -- The networks of those 2xx responses, newest first. Attempts to any other address are counted in
  -- webhook_networks, because the owner of the name may point it at a machine that never agreed.
  proven_networks cidr[] not null default '{}',
  primary key (organization_id, host)
);
create index webhook_hosts_by_age on webhook_hosts (greatest(failing_since, open_until, turn_at, accepted_at));

-- Protects third parties from attacks through our deliveries. One address gets few attempts from
-- receivers that have not proven themselves, across organizations, names, and ports. A row has the
-- allowance of one network.
create table webhook_networks (
  network cidr primary key,
  -- The time at which the allowance is complete again.
  spent_until timestamptz(3) not null
);
create index webhook_networks_by_age on webhook_networks (spent_until);

-- Returns the network that an address is counted in. One machine can have all addresses of an IPv6
-- /64.
create function webhook_network(address inet) returns cidr language sql immutable parallel safe as $$
  select network(set_masklen(address, case family(address) when 4 then 32 else 64 end))
$$;

-- Targets that operators have blocked.
create table webhook_blocks (
  -- An address range such as 192.0.2.0/24, or a host with all its subdomains.
  target text primary key check (target ~ '^[0-9a-z.:_-]+(/[0-9]+)?$'),
  reason text not null,
  created_at timestamptz(3) not null default clock_timestamp()
);
