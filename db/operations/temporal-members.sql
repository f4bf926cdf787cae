-- Run before `npm start -- --temporal server` starts its server. Otherwise, the new server would
-- wait for the members of an earlier start, which no longer run.
DELETE FROM cluster_membership;
