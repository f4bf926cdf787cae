#!/bin/sh
# Creates the users, a database for the service, and two for Temporal, unless they exist. Needs psql
# and PG… variables.
set -eu
psql --quiet --set ON_ERROR_STOP=1 --file "$(dirname "$0")/users.sql"
make() {
  [ -n "$(psql --tuples-only --command "select 1 from pg_database where datname = '$1'")" ] || createdb --owner "$2" "$1"
  # By default, every user may connect to a new database.
  psql --quiet --command "revoke connect on database $1 from public"
}
make enrichment npe_migrate_1
psql --quiet --command "grant connect on database enrichment to npe_api, npe_worker, npe_operator, npe_viewer"
make temporal temporal
make temporal_visibility temporal
