-- Queries of `python -m lab.bench`: timings of turns and steps by the ledger's clock, and rows touched by the server.

-- name: list_turn_timings :many
-- For each ended turn of a project the ms from its enqueue to its begin and to its end.
SELECT (o.stats ->> 'queue_delay_ms')::float8 AS queue_delay_ms, (o.stats ->> 'e2e_ms')::float8 AS e2e_ms
FROM state.turn_outcomes o
WHERE o.project_id = :project_id AND o.stats ? 'e2e_ms' AND o.stats ? 'queue_delay_ms';

-- name: list_step_timings :many
-- The duration of each step of a project, in ms.
SELECT (s.metadata -> 'timing' ->> 'step_ms')::float8 AS step_ms
FROM state.agent_steps s
WHERE s.project_id = :project_id AND s.metadata -> 'timing' ? 'step_ms';

-- name: list_fork_timings :many
-- For each fork of these turns the ms from the commit of its call to the last child's end and enqueue, and from there to the next step.
SELECT extract(epoch FROM c.ended_at - w.created_at)::float8 * 1000 AS fork_ms,
       extract(epoch FROM c.enqueued_at - w.created_at)::float8 * 1000 AS enqueued_ms,
       extract(epoch FROM s.started_at - c.ended_at)::float8 * 1000 AS wake_ms
FROM state.turn_waiting_tools w
JOIN state.pmo_batches b ON b.parent_tool_call_id = w.tool_call_id AND b.status = 'success'
CROSS JOIN LATERAL (
    SELECT max(o.ended_at) AS ended_at, max(i.created_at) AS enqueued_at FROM state.pmo_batch_tasks t
    JOIN state.turn_outcomes o ON o.agent_turn_id = t.current_agent_turn_id
    JOIN state.agent_inbox i ON i.agent_turn_id = t.current_agent_turn_id AND i.message_type = 'turn'
    WHERE t.batch_id = b.batch_id) c
CROSS JOIN LATERAL (
    SELECT max(x.started_at) AS started_at FROM state.agent_steps x WHERE x.agent_turn_id = w.agent_turn_id) s
WHERE w.project_id = :project_id AND w.agent_turn_id = ANY (:agent_turn_ids::text[]);

-- name: count_suspended :one
-- The number of sleeping turns of a project.
SELECT count(*) AS suspended FROM state.agent_state_head h WHERE h.project_id = :project_id AND h.status = 'suspended';

-- name: list_waiting_calls :many
-- Unanswered calls of a project, oldest first.
SELECT w.tool_call_id, w.agent_turn_id FROM state.turn_waiting_tools w
WHERE w.project_id = :project_id AND w.wait_status = 'waiting' ORDER BY w.created_at, w.tool_call_id LIMIT :row_limit::int;

-- name: list_turn_moments :many
-- When what happened to each of these turns, by the server's clock but for the step's begin, which is the worker's; null: not yet, or never.
-- A row that its own enqueue claimed has the begin of that transaction as the moment of its claim: it has no claim to wait for.
SELECT o.agent_turn_id, i.created_at AS enqueued, CASE WHEN i.processed_at > i.created_at THEN i.processed_at END AS claimed,
       s.started_at AS step_started, o.started_at AS begun,
       s.ended_at AS step_ended, o.ended_at AS turn_ended, o.announced_at AS announced
FROM state.turn_outcomes o
LEFT JOIN state.agent_inbox i ON i.inbox_id = o.inbox_id
LEFT JOIN state.agent_steps s ON s.step_id = o.agent_turn_id || '-s1' AND s.project_id = o.project_id
WHERE o.agent_turn_id = ANY (:agent_turn_ids::text[]);

-- name: rows_touched :one
-- Rows read and written in the ledger's tables since the statistics began, as far as sessions have reported them.
SELECT coalesce(sum(coalesce(t.seq_tup_read, 0) + coalesce(t.idx_tup_fetch, 0)), 0)::int8 AS read,
       coalesce(sum(t.n_tup_ins + t.n_tup_upd + t.n_tup_del), 0)::int8 AS written
FROM pg_stat_user_tables t;

-- name: read_delay :one
-- The seconds from a turn's enqueue to its begin, and the ended turns of the project `loud`: those that began meanwhile, and all.
SELECT extract(epoch FROM o.started_at - i.created_at)::float8 AS seconds,
       (SELECT count(*) FROM state.turn_outcomes f
        WHERE f.project_id = :loud AND f.started_at BETWEEN i.created_at AND o.started_at) AS meanwhile,
       (SELECT count(*) FROM state.turn_outcomes f WHERE f.project_id = :loud) AS ended
FROM state.turn_outcomes o JOIN state.agent_inbox i USING (inbox_id)
WHERE o.agent_turn_id = :agent_turn_id;

-- name: count_stamps :one
-- The turns of a project that succeeded with a deliverable of this many chunks, each of which is a moment in nanoseconds.
SELECT count(*) FILTER (WHERE regexp_count(c.content::text, '[0-9]{19}') = :chunks::int) AS whole
FROM state.turn_outcomes o JOIN public.cards c ON c.card_id = o.deliverable_card_id
WHERE o.project_id = :project_id AND o.status = 'success';
