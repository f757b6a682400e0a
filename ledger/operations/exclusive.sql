-- Targets that belong to one process (protocol §8): a session's advisory lock, of a key made from what is held.

-- name: try_hold :one
-- Whether this session holds it now; asking again after that would hold it twice. A standby has locks of its own.
SELECT pg_try_advisory_lock(hashtextextended(:name, 0)) AS held, pg_backend_pid() AS backend,
  current_setting('transaction_read_only')::bool AS read_only;

-- name: still_holds :one
-- Whether this is the session that took the lock: a pooler may have put us on another one.
SELECT pg_backend_pid() = :backend::int AND EXISTS (
    SELECT FROM pg_locks l WHERE l.pid = :backend::int AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended(:name, 0)) AS held;

-- name: holder_of :opt
-- What the process that holds it calls itself, if this user may know.
SELECT a.application_name AS holder FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended(:name, 0);
