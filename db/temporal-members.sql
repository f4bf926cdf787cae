-- The server of `npm start -- --temporal server` is a whole cluster: members of an earlier start
-- are gone, and would be waited for.
DELETE FROM cluster_membership;
