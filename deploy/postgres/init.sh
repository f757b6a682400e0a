#!/bin/sh
# Login roles and databases of a PostgreSQL that serves Turnstile and its Temporal (docs/security.md). For
# /docker-entrypoint-initdb.d, or by hand as a superuser: it may run again, and then sets the passwords anew.
# The tables' rights are given by `turnstile migrate`.
set -eu

: "${POSTGRES_MIGRATE_PASSWORD:?}" "${POSTGRES_BRIDGE_PASSWORD:?}" "${POSTGRES_WORKER_PASSWORD:?}"
: "${POSTGRES_GATEWAY_PASSWORD:?}" "${POSTGRES_TEMPORAL_PASSWORD:?}"

# \getenv keeps the passwords out of the list of processes
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'SQL'
\getenv migrate_password POSTGRES_MIGRATE_PASSWORD
\getenv bridge_password POSTGRES_BRIDGE_PASSWORD
\getenv worker_password POSTGRES_WORKER_PASSWORD
\getenv gateway_password POSTGRES_GATEWAY_PASSWORD
\getenv temporal_password POSTGRES_TEMPORAL_PASSWORD

SELECT format('CREATE ROLE %I', name) FROM (VALUES
    ('turnstile_migrate'), ('turnstile_bridge'), ('turnstile_worker'), ('turnstile_gateway'),
    ('temporal')) AS wanted (name)
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
ALTER ROLE turnstile_migrate LOGIN PASSWORD :'migrate_password';
ALTER ROLE turnstile_bridge LOGIN PASSWORD :'bridge_password';
ALTER ROLE turnstile_worker LOGIN PASSWORD :'worker_password';
ALTER ROLE turnstile_gateway LOGIN PASSWORD :'gateway_password';
ALTER ROLE temporal LOGIN PASSWORD :'temporal_password';

SELECT format('CREATE DATABASE %I', name) FROM (VALUES
    ('turnstile'), ('temporal'), ('temporal_visibility')) AS wanted (name)
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = name) \gexec
ALTER DATABASE turnstile OWNER TO turnstile_migrate;
ALTER DATABASE temporal OWNER TO temporal;
ALTER DATABASE temporal_visibility OWNER TO temporal;
REVOKE ALL ON DATABASE turnstile, temporal, temporal_visibility FROM PUBLIC;
GRANT CONNECT ON DATABASE turnstile TO turnstile_bridge, turnstile_worker, turnstile_gateway;
SQL
