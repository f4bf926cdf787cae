-- Worker processes tell here that they live, so that API, doctor and the other workers know whom Temporal can reach.
create table workers (
  id text primary key,
  namespace text not null,
  task_queue text not null,
  build_id text not null,
  seen_at timestamptz(3) not null default clock_timestamp(),
  stopped_at timestamptz(3)
);
