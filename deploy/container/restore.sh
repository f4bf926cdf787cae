#!/bin/sh
# Restores a backup of backup.sh into a server without the database enrichment: restore.sh FILE.
# Needs pg_restore, and the variables that databases.sh needs. Then run "npm run migrate".
set -eu
file=${1:?usage: restore.sh FILE}
sh "$(dirname "$0")/databases.sh"
tables=$(psql --no-align --tuples-only --dbname enrichment --command "select count(*) from pg_tables where schemaname = 'public'")
if [ "$tables" != 0 ]; then
  echo "restore.sh: the database enrichment has tables. Nothing was changed. To keep them, rename it: alter database enrichment rename to before_restore" >&2
  exit 1
fi
# Owners and rights are not restored, because the roles may be missing. The migration sets them.
pg_restore --no-owner --no-privileges --role npe_migrate_1 --single-transaction --dbname enrichment "$file"
