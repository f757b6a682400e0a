-- Calls of tools that must not be run twice: who began one, and those of which nobody knows whether they were done
-- (protocol §6, report).

-- name: begin_call :opt
-- Records the run that begins a call, the first one only; a later one is noted as a doubt. No row: the call waits no
-- more, or is held.
UPDATE state.turn_waiting_tools w SET
    begun_at = CASE WHEN w.begun_by IS NULL THEN now() ELSE w.begun_at END, begun_by = coalesce(w.begun_by, :begins),
    doubted_at = CASE WHEN w.begun_by <> :begins THEN now() ELSE w.doubted_at END
WHERE w.tool_call_id = :tool_call_id AND w.project_id = :project_id AND w.wait_status = 'waiting' AND w.held_by IS NULL
RETURNING w.begun_by = :begins AS may_run;

-- name: list_unsure :many
-- Rule 'outcome': calls that a replica began to run and has not reported for a while, or that were given to another
-- since. It sets the waiting row's updated_at, as 'command' does, so that one bridge at a time asks whether somebody
-- runs them.
WITH silent AS MATERIALIZED (
    SELECT w.tool_call_id, w.project_id, h.active_channel_id, h.active_inbox_id FROM state.agent_state_head h
    JOIN resource.project_agents a ON a.agent_id = h.agent_id AND a.project_id = h.project_id
    JOIN state.turn_waiting_tools w ON w.agent_turn_id = h.active_agent_turn_id
        AND w.project_id COLLATE "C" = h.project_id
    WHERE h.output_box_id IS NOT NULL AND h.status = 'suspended' AND w.wait_status = 'waiting'
      AND w.held_by IS NULL AND w.begun_by IS NOT NULL
      AND w.left_seconds IS NULL AND (w.doubted_at IS NOT NULL OR greatest(
          w.updated_at, w.begun_at) < now() - make_interval(secs => :older_seconds::float8))
      AND a.worker_target = ANY (:worker_targets::text[])
    LIMIT :row_limit::int FOR NO KEY UPDATE OF w SKIP LOCKED
)
UPDATE state.turn_waiting_tools w SET updated_at = now(), doubted_at = NULL
FROM silent WHERE w.tool_call_id = silent.tool_call_id AND w.project_id = silent.project_id
RETURNING w.project_id, w.agent_id, w.agent_turn_id, w.turn_epoch, w.step_id, w.tool_call_id,
          w.tool_name, w.begun_by, w.begun_at, coalesce(silent.active_channel_id, 'public') AS channel_id,
          (SELECT c.content FROM public.cards c
           WHERE c.card_id = coalesce(w.call_card_id, w.tool_call_id || '-call')
             AND c.tenant_id = w.project_id) AS content,
          NOT EXISTS (SELECT FROM resource.tools t
                      WHERE t.tool_name = w.tool_name AND t.project_id = w.project_id
                        AND t.options -> 'repeat_ask' = 'false') AS asks,
          (SELECT i.context_headers FROM state.agent_inbox i
           WHERE i.inbox_id = silent.active_inbox_id) AS context_headers;

-- name: settle_unknown :one
-- Asks a person about a call that nobody runs any more, or fails it; see its function.
SELECT state.settle_unknown(:project_id, :tool_call_id, :begun_by, :question, :digest, :asks, :open_seconds) AS settled;
