-- Run before Temporal's server starts again on its tables. Otherwise, the new server would wait for
-- the members of an earlier start, which no longer run.
DELETE FROM cluster_membership;
