#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Run once, by the base image, in a new database: the extension, and a login of role dpml_curator if
# DPML_CURATOR_PASSWORD_FILE names a file with its password.
set -eu
psql --no-psqlrc -v ON_ERROR_STOP=1 --quiet --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
	-c 'CREATE EXTENSION pg_dpml'
if [ -n "${DPML_CURATOR_PASSWORD_FILE:-}" ]; then
	# The password is read by psql itself, so that it is on no command line, and in no log.
	psql --no-psqlrc -v ON_ERROR_STOP=1 --quiet --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<-'SQL'
		SET log_statement = 'none';
		SET log_min_error_statement = 'panic';
		SET log_min_duration_statement = -1;
		SET password_encryption = 'scram-sha-256';
		\set password `cat "$DPML_CURATOR_PASSWORD_FILE"`
		CREATE ROLE curator LOGIN PASSWORD :'password' IN ROLE dpml_curator;
	SQL
fi
