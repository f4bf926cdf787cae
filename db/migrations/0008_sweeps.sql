-- The sweep is a loop in every worker process: this row says whose turn it is, one process of all per interval. It is
-- written by the first turn.
create table sweeps (
  one boolean primary key default true check (one),
  -- Before that nobody sweeps.
  due_at timestamptz(3) not null,
  -- When a sweep last came to its end.
  swept_at timestamptz(3)
);
