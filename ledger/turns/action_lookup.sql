-- Looks up UI actions for the bridge (protocol §7.10); enqueue_turn enqueues their turns.

-- name: find_action :one
-- The tool that an action names, and the turn that was enqueued under its correlation, with its outcome.
SELECT to_jsonb(t) - 'project_id' AS tool, i.agent_id, i.channel_id, i.agent_turn_id, i.turn_epoch,
       i.request_digest, i.context_headers, o.status, o.tool_result_card_id, o.error_code, o.error
FROM (SELECT) AS always
LEFT JOIN resource.tools t ON t.tool_name = :tool_name AND t.project_id = :project_id
LEFT JOIN LATERAL (
    SELECT i.* FROM state.agent_inbox i
    WHERE i.correlation_id = :correlation_id AND i.project_id = :project_id AND i.message_type IN {turn_types}
    ORDER BY i.message_type = 'turn' LIMIT 1) i ON true
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id;
