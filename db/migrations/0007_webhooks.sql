-- Webhooks: the state of a delivery in its batch's envelope, and the networks of receivers.

-- A batch's envelope contains the state of its deliveries, so a change of it is a new version.
create function touch_batch_of_delivery() returns trigger language plpgsql as $$
begin
  update batches set updated_at = later(updated_at, clock_timestamp()) where id = new.batch_id;
  return null;
end $$;

create trigger webhook_deliveries_touch_batch after update of state on webhook_deliveries
  for each row when (old.state is distinct from new.state) execute function touch_batch_of_delivery();

-- Returns the network under which attempts to an address are counted: the address itself for IPv4,
-- and the /64 network for IPv6, because one machine can have all addresses of such a network.
create function webhook_network(address inet) returns cidr language sql immutable parallel safe as $$
  select network(set_masklen(address, case family(address) when 4 then 32 else 64 end))
$$;
