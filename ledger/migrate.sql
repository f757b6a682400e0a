-- What `turnstile migrate` asks of the database.

-- name: lock_migrations :exec
-- One migrator at a time, until unlock_migrations or the end of the session.
SELECT pg_advisory_lock(8391744893245368684);

-- name: unlock_migrations :exec
-- The other migrators may go on.
SELECT pg_advisory_unlock(8391744893245368684);

-- name: has_migrations :one
-- Whether the database was ever migrated.
SELECT to_regclass('state.migrations') IS NOT NULL AS found;

-- name: applied_migrations :many
-- What was applied, with the checksum it had then.
SELECT name, checksum FROM state.migrations ORDER BY name;

-- name: record_migration :exec
-- Belongs to the transaction that applied it.
INSERT INTO state.migrations (name, checksum) VALUES (:name, :checksum);

-- name: server_version :one
-- The server's version as a number and as people write it, and whether it takes no writes.
SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS text,
  current_setting('transaction_read_only')::bool AS read_only;
