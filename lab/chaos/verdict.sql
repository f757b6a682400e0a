-- Queries on the ledger at the end of a run.

-- name: count_anew :exec
-- A killed server forgets what its tables hold: after 10,000 turns the planner joined them row by row, for more than a minute.
ANALYZE;

-- name: unfinished :many
-- Unfinished work: live heads, queued turns, live inbox rows, outcomes that were not announced.
SELECT 'head' AS what, h.agent_id, h.active_agent_turn_id AS agent_turn_id,
       h.status || ', step ' || h.step_count || ', attempt ' || h.step_attempt || ', waits for ' || h.waiting_tool_count
       || coalesce(', until ' || h.resume_deadline, '') || ', restarts ' || h.restart_count AS state,
       extract(epoch FROM now() - h.updated_at)::float8 AS silent_for
FROM state.agent_state_head h WHERE h.status <> 'idle'
UNION ALL
SELECT 'inbox', i.agent_id, i.agent_turn_id,
       i.message_type || ' ' || i.status || ', due in ' || coalesce((i.next_retry_at - now())::text, '?')
       || coalesce(', ' || i.last_error, '') || coalesce(', ' || i.defer_reason, ''),
       extract(epoch FROM now() - i.created_at)::float8
FROM state.agent_inbox i WHERE i.archived_at IS NULL
UNION ALL
SELECT 'unannounced', o.agent_id, o.agent_turn_id, o.status, extract(epoch FROM now() - o.ended_at)::float8
FROM state.turn_outcomes o WHERE o.announced_at IS NULL
ORDER BY 1, 5 DESC;

-- name: outcomes :many
-- All outcomes.
SELECT o.agent_turn_id, o.status, o.error_code, extract(epoch FROM o.ended_at)::float8 AS ended_at,
       extract(epoch FROM coalesce(o.started_at, o.ended_at))::float8 AS started_at, i.correlation_id
FROM state.turn_outcomes o JOIN state.agent_inbox i ON i.inbox_id = o.inbox_id;

-- name: turns_of_a_correlation :many
-- Correlations that became more than one turn.
SELECT correlation_id, count(DISTINCT agent_turn_id)::int8 AS turns FROM state.agent_inbox
WHERE message_type = 'turn' GROUP BY project_id, correlation_id HAVING count(DISTINCT agent_turn_id) > 1;

-- name: results_twice :many
-- Calls with more than one result, or with one twice in a box. A child that inherits a box has the cards of it in its own.
SELECT c.tool_call_id, count(*)::int8 AS results FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
WHERE c.metadata ->> 'type' = 'tool.result' AND c.tool_call_id IS NOT NULL
GROUP BY c.tenant_id, c.tool_call_id HAVING count(DISTINCT c.card_id) > 1 OR count(*) > count(DISTINCT b.box_id);

-- name: calls :one
-- The number of calls sent, by how they were settled.
SELECT count(*)::int8 AS calls, count(*) FILTER (WHERE wait_status = 'applied')::int8 AS applied,
       count(*) FILTER (WHERE wait_status = 'expired')::int8 AS expired,
       count(*) FILTER (WHERE wait_status = 'dropped')::int8 AS dropped
FROM state.turn_waiting_tools;

-- name: committed :many
-- The steps that were committed, with the key of their turn's instruction and the attempt that won.
SELECT (c.content ->> 'text')::jsonb ->> 'key' AS key, split_part(s.step_id, '-s', 2)::int8 AS step, s.status,
       (s.metadata -> 'attempts' -> -1 ->> 'attempt')::int8 AS attempt
FROM state.agent_steps s JOIN public.cards c ON c.card_id = s.agent_turn_id || '-instruction' AND c.tenant_id = s.project_id;

-- name: batches :many
-- The number of batches by what they came to.
SELECT status, count(*)::int8 AS batches FROM state.pmo_batches GROUP BY status ORDER BY status;

-- name: repairs :many
-- The repairs of the safety net, by rule.
SELECT rule, repaired FROM state.repairs WHERE repaired > 0 ORDER BY rule;

-- name: heads :many
-- The number of live turns by status.
SELECT status, count(*)::int8 AS turns FROM state.agent_state_head WHERE status <> 'idle' GROUP BY status ORDER BY status;

-- name: not_brought_back :many
-- Live turns that the rule `engine` has not started again.
SELECT active_agent_turn_id FROM state.agent_state_head WHERE status <> 'idle' AND restart_count = 0;

-- name: budgets :one
-- What budgets of turns were given, how many are open still, and what of what came from nobody was spent, unsettled, beyond and given back.
SELECT count(*)::int8 AS budgets, count(*) FILTER (WHERE b.closed_at IS NULL)::int8 AS open,
       coalesce(sum(b.max_tokens) FILTER (WHERE b.from_tokens = '{}'), 0)::int8 AS granted,
       coalesce(sum(b.spent_tokens) FILTER (WHERE b.from_tokens = '{}' AND b.max_tokens IS NOT NULL), 0)::int8 AS spent,
       coalesce(sum(b.returned_tokens) FILTER (WHERE b.from_tokens = '{}'), 0)::int8 AS returned,
       coalesce(sum(b.unsettled_tokens) FILTER (WHERE b.from_tokens = '{}'), 0)::int8 AS unsettled,
       coalesce(sum(greatest(b.spent_tokens - b.max_tokens, 0)) FILTER (WHERE b.from_tokens = '{}'), 0)::int8 AS above
FROM state.budgets b WHERE b.kind = 'turn';

-- name: firings :many
-- The firings of each schedule, in order, with when it fires and what it counts from.
SELECT f.schedule_id, s.timing::text AS timing, s.anchor_at, f.nominal_at, f.fired_at,
       f.agent_turn_id, f.code, s.paused_at
FROM state.schedule_firings f JOIN resource.schedules s USING (project_id, schedule_id)
ORDER BY f.schedule_id, f.nominal_at;
