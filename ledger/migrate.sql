-- The statements of `turnstile migrate`.

-- name: lock_migrations :exec
-- Lets one migrator run at a time, until unlock_migrations or the end of the session.
SELECT pg_advisory_lock(8391744893245368684);

-- name: unlock_migrations :exec
-- Releases the lock of lock_migrations.
SELECT pg_advisory_unlock(8391744893245368684);

-- name: has_migrations :one
-- Whether the database was ever migrated.
SELECT to_regclass('state.migrations') IS NOT NULL AS found;

-- name: applied_migrations :many
-- The applied migrations with their checksums.
SELECT name, checksum FROM state.migrations ORDER BY name;

-- name: record_migration :exec
-- Records a migration, in the transaction that applies it.
INSERT INTO state.migrations (name, checksum) VALUES (:name, :checksum);

-- name: server_version :one
-- The server's version as a number and as text, and whether the server is read-only.
SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS text,
  current_setting('transaction_read_only')::bool AS read_only;

-- name: store_probe :exec
-- Stores a megabyte in a table that only this transaction sees, which must be rolled back: a full disk refuses it.
CREATE TEMPORARY TABLE turnstile_probe ON COMMIT DROP AS SELECT repeat('x', 1000) FROM generate_series(1, 1000);
