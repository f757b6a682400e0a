-- Exclusive use of a target (protocol §8): an advisory lock of a session, whose key is derived from the lock's name.

-- name: try_hold :one
-- Takes the lock if it is free; says whether this session holds it now. Call it once per session: a second call would
-- hold it twice. read_only: a standby has its own locks, which keep nobody else away.
SELECT pg_try_advisory_lock(hashtextextended(:name, 0)) AS held, pg_backend_pid() AS backend,
  current_setting('transaction_read_only')::bool AS read_only;

-- name: still_holds :one
-- Whether this is the session that took the lock: behind a pooler it may be another one.
SELECT pg_backend_pid() = :backend::int AND EXISTS (
    SELECT FROM pg_locks l WHERE l.pid = :backend::int AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended(:name, 0)) AS held;

-- name: holder_of :opt
-- The name of the process that holds the lock, if this user may see it.
SELECT a.application_name AS holder FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended(:name, 0);
