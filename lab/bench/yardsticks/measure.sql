-- What `python -m lab.bench` reads of a ledger: how long turns took by its own clock, and how many rows the server has touched.

-- name: list_turn_timings :many
-- How long each ended turn of a project waited for its begin and for its end, in ms.
SELECT (o.stats ->> 'queue_delay_ms')::float8 AS queue_delay_ms, (o.stats ->> 'e2e_ms')::float8 AS e2e_ms
FROM state.turn_outcomes o
WHERE o.project_id = :project_id AND o.stats ? 'e2e_ms' AND o.stats ? 'queue_delay_ms';

-- name: list_step_timings :many
-- How long each step of a project took, in ms.
SELECT (s.metadata -> 'timing' ->> 'step_ms')::float8 AS step_ms
FROM state.agent_steps s
WHERE s.project_id = :project_id AND s.metadata -> 'timing' ? 'step_ms';

-- name: count_suspended :one
-- Turns of a project that are asleep.
SELECT count(*) AS suspended FROM state.agent_state_head h WHERE h.project_id = :project_id AND h.status = 'suspended';

-- name: list_waiting_calls :many
-- Calls of a project that nobody has answered, oldest first.
SELECT w.tool_call_id, w.agent_turn_id FROM state.turn_waiting_tools w
WHERE w.project_id = :project_id AND w.wait_status = 'waiting' ORDER BY w.created_at, w.tool_call_id LIMIT :row_limit::int;

-- name: rows_touched :one
-- Rows that statements on our tables have read and written since the server's statistics began, as far as sessions told.
SELECT coalesce(sum(coalesce(t.seq_tup_read, 0) + coalesce(t.idx_tup_fetch, 0)), 0)::int8 AS read,
       coalesce(sum(t.n_tup_ins + t.n_tup_upd + t.n_tup_del), 0)::int8 AS written
FROM pg_stat_user_tables t;
