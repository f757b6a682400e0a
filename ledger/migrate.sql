-- The statements of `turnstile migrate`.

-- name: lock_schema :exec
-- Lets one migrator run at a time, until unlock_schema or the end of the session.
SELECT pg_advisory_lock(8391744893245368684);

-- name: unlock_schema :exec
-- Releases the lock of lock_schema.
SELECT pg_advisory_unlock(8391744893245368684);

-- name: leave_bodies_unchecked :exec
-- Lets functions of this transaction name in their bodies what is made after them.
SET LOCAL check_function_bodies = off;

-- name: find_schema :one
-- Whether the database has a schema, and whether one of the development versions made it that recorded numbered
-- migrations alone.
SELECT to_regclass('state.schema_files') IS NOT NULL AS is_there,
       to_regclass('state.migrations') IS NOT NULL AS is_of_before;

-- name: applied_schema_files :many
-- The applied files with their checksums.
SELECT name, checksum FROM state.schema_files ORDER BY name;

-- name: record_schema_file :exec
-- Records a file, in the transaction that applies it.
INSERT INTO state.schema_files (name, checksum) VALUES (:name, :checksum)
ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, applied_at = now();

-- name: server_version :one
-- The server's version as a number and as text, whether the server is read-only, and a setting with which the session
-- began.
SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS text,
       current_setting('transaction_read_only')::bool AS read_only,
       current_setting('plan_cache_mode') AS plan_cache_mode;

-- name: session_process :one
-- The server's process that this session has.
SELECT pg_backend_pid() AS pid;

-- name: store_probe :exec
-- Stores a megabyte in a table that only this transaction sees, which must be rolled back: a full disk refuses it.
CREATE TEMPORARY TABLE turnstile_probe ON COMMIT DROP AS SELECT repeat('x', 1000) FROM generate_series(1, 1000);
