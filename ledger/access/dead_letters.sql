-- What was given up and what was refused, as people look at them.

-- name: list_dead_letters :many
-- The inbox rows of a project, of one channel if that is given, that ended as errors, the newest first, after a place
-- in that order; with what has become of the turn and of the call that they are about.
SELECT i.inbox_id, i.agent_id, i.channel_id, i.message_type, i.last_error AS reason, i.agent_turn_id,
       i.retry_count, i.created_at, i.archived_at,
       i.context_headers ->> 'CG-Sender' AS sender, w.tool_call_id, w.tool_name, w.step_id, w.wait_status,
       t.found IS NOT NULL AS has_turn, coalesce(t.repeatable, false) AS repeatable, o.status AS outcome
FROM state.agent_inbox i
LEFT JOIN LATERAL (
    SELECT x.tool_call_id, x.tool_name, x.step_id, x.wait_status FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = i.correlation_id AND x.project_id = i.project_id
      AND i.message_type IN {report_types} LIMIT 1) w ON true
LEFT JOIN LATERAL (
    SELECT true AS found, x.message_type = 'turn' AS repeatable FROM state.agent_inbox x
    WHERE x.agent_turn_id = i.agent_turn_id AND x.project_id = i.project_id
      AND x.message_type IN {turn_types} LIMIT 1) t ON true
LEFT JOIN LATERAL (
    SELECT x.status FROM state.turn_outcomes x
    WHERE x.agent_turn_id = i.agent_turn_id AND x.project_id = i.project_id LIMIT 1) o ON true
WHERE i.project_id COLLATE "C" = :project_id AND i.last_error IN ('protocol_violation', 'resume_retry_exhausted')
  AND i.status = 'error'
  AND (:channel_id::text IS NULL OR i.channel_id = :channel_id)
  AND i.created_at <= coalesce(:before_at::timestamptz, 'infinity')
  AND (:before_at::timestamptz IS NULL OR i.created_at < :before_at
       OR (i.created_at = :before_at AND i.inbox_id < :before_id))
ORDER BY i.created_at DESC, i.inbox_id DESC LIMIT :row_limit::int;

-- name: list_rejections :many
-- The refusals of a project that were recorded, the newest first, before one of them.
SELECT r.rejection_id, r.source, r.error_code, r.error, r.ids, r.created_at FROM state.rejections r
WHERE r.project_id COLLATE "C" = :project_id AND r.rejection_id < coalesce(:before_id::bigint, 9223372036854775807)
ORDER BY r.rejection_id DESC LIMIT :row_limit::int;
