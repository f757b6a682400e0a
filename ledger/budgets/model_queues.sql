-- The queues of requests to models (protocol §7.9), each changed as a whole by whoever has read it last.

-- name: swap_model_queue :opt
-- Writes a queue if it still is the version that was read, null where none was; answers what it is then, and the clock.
WITH swapped AS (
    INSERT INTO state.model_queues AS q (account, model, version, state, paused_until, waiting)
    VALUES (:account, :model, :version::bigint, :state::jsonb, to_timestamp(:paused_until::float8), :waiting::int)
    ON CONFLICT (account, model) DO UPDATE
        SET version = EXCLUDED.version, state = EXCLUDED.state, paused_until = EXCLUDED.paused_until,
            waiting = EXCLUDED.waiting, updated_at = now()
        WHERE q.version = :expected::bigint
    RETURNING q.version, q.state
)
SELECT s.version, s.state, extract(epoch FROM clock_timestamp())::float8 AS now FROM swapped s
UNION ALL
SELECT q.version, q.state, extract(epoch FROM clock_timestamp())::float8
FROM state.model_queues q
WHERE q.account = :account AND q.model = :model AND NOT EXISTS (SELECT FROM swapped);

-- name: load_model_queues :many
-- The queues that hold requests up; and removes those that nobody has used for a day.
WITH unused AS (
    DELETE FROM state.model_queues q WHERE q.updated_at < now() - interval '1 day'
)
SELECT q.account, q.model, q.version, q.state, extract(epoch FROM clock_timestamp())::float8 AS now
FROM state.model_queues q
WHERE q.updated_at >= now() - interval '1 day'
  AND (q.paused_until > now() OR q.waiting > 0 OR (q.state ->> 'window')::int > 0)
ORDER BY q.account, q.model LIMIT :row_limit::int;

-- name: list_model_queues :many
-- The queues in which requests wait, or whose provider wants none now, the longest pause first.
SELECT q.account, q.model, q.paused_until, q.waiting, q.state
FROM state.model_queues q
WHERE q.paused_until > now() OR (q.waiting > 0 AND q.updated_at > now() - interval '1 minute')
ORDER BY q.paused_until DESC NULLS LAST, q.account, q.model LIMIT :row_limit::int;
