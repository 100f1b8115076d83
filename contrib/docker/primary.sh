#!/bin/bash
#
# Runs once, when the primary of compose.yaml creates its data directory: the role of the
# standby, and the extension.

set -e

psql -v ON_ERROR_STOP=1 -v password="$POSTGRES_PASSWORD" -U "$POSTGRES_USER" -d "$POSTGRES_DB" <<'SQL'
CREATE ROLE replication LOGIN REPLICATION PASSWORD :'password';
SELECT pg_create_physical_replication_slot('standby');
CREATE EXTENSION pg_pinpoint;
SQL
echo 'host replication replication all scram-sha-256' >>"$PGDATA/pg_hba.conf"
