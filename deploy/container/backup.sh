#!/bin/sh
# Writes a backup of the database enrichment to FILE: backup.sh FILE. Needs pg_dump of the server's
# version or a later one, and PG… variables for the superuser or the owner of the database.
set -eu
file=${1:?usage: backup.sh FILE}
umask 077
# All data is from one moment. Other programs continue to write.
pg_dump --format custom --file "$file.unfinished" enrichment
mv "$file.unfinished" "$file"
# For npe_backup_age_seconds, as "backups note" does.
psql --quiet --dbname enrichment --command "update routines set ended_at = clock_timestamp() where kind = 'backup'"
