-- The audit's rules on calls of tools that must not be run twice. Of a window: of turns enqueued in it, or in hand now.

-- name: begun_calls_wait_for_their_run :many
-- Protocol §6 report: a call that a run has begun, and of which nobody was asked since, is held by nothing and says
-- when it began.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id,
                          'tool_call_id', w.tool_call_id) AS ids,
       CASE WHEN w.begun_at IS NULL THEN 'a run has begun the call, and nobody knows when'
            ELSE 'the call is begun, and held' END AS detail
FROM {of_turns_since(state.turn_waiting_tools, agent_turn_id)} w
WHERE w.begun_by IS NOT NULL AND (w.begun_at IS NULL OR (w.wait_status = 'waiting' AND w.held_by IS NOT NULL))
  AND (:project_id::text IS NULL OR w.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: confirmations_are_of_begun_calls :many
-- Protocol §6 report: a person is asked whether a call was done only after a run has begun it, and may not change it.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_turn_id', q.agent_turn_id, 'tool_call_id', q.tool_call_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       CASE WHEN w.begun_at IS NULL OR (q.status = 'open' AND w.begun_at > q.created_at)
                 THEN 'no run had begun the call'
            ELSE 'a call that may have been done could be edited' END AS detail
FROM {of_turns_since(state.interrupts, agent_turn_id)} q
JOIN state.turn_waiting_tools w ON w.tool_call_id = q.tool_call_id AND w.project_id = q.project_id
WHERE q.reason = 'confirmation'
  AND (w.begun_at IS NULL OR (q.status = 'open' AND w.begun_at > q.created_at) OR 'edit' = ANY (q.allowed_decisions))
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;
