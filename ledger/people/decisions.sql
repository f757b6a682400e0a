-- What turns ask people (protocol §13). Lock order: head, waiting row, interrupt, inbox, node.

-- name: find_question :opt
-- A question with what an edit of its call, its command and its doorbell need: the call, its tool as it is now, and its
-- turn.
SELECT q.interrupt_id, q.status, q.reason, q.call_key, q.agent_id, q.agent_turn_id, q.channel_id,
       q.step_id, q.tool_call_id, q.tool_name, q.response_schema,
       q.allowed_decisions, w.turn_epoch, a.worker_target, i.context_headers, i.inbox_id,
       split_part(i.context_headers ->> 'traceparent', '-', 2) AS trace_id, s.parent_step_id,
       s.profile_box_id::text AS profile_box_id, s.context_box_id::text AS context_box_id,
       s.output_box_id::text AS output_box_id,
       (SELECT to_jsonb(t) - 'project_id' FROM resource.tools t
        WHERE t.tool_name = q.tool_name AND t.project_id = q.project_id) AS tool,
       (SELECT x || jsonb_build_object('tool_call_card_id', coalesce(w.call_card_id, x ->> 'tool_call_card_id'))
        FROM jsonb_array_elements(s.metadata -> 'commands') x WHERE x ->> 'tool_call_id' = q.tool_call_id) AS command
FROM state.interrupts q
JOIN state.turn_waiting_tools w ON w.tool_call_id = q.tool_call_id AND w.project_id = q.project_id
JOIN state.agent_steps s ON s.step_id = q.step_id AND s.project_id = q.project_id
JOIN state.agent_inbox i ON i.agent_turn_id = q.agent_turn_id AND i.project_id = q.project_id
    AND i.message_type IN {turn_types}
LEFT JOIN resource.project_agents a ON a.agent_id = q.agent_id AND a.project_id = q.project_id
WHERE q.interrupt_id = :interrupt_id AND q.project_id = :project_id AND q.channel_id = :channel_id;

-- name: decide_interrupt :one
-- Decides a question, once; see its function. A trigger of state.interrupts leaves an inbox row and an edge.
SELECT d.decided FROM state.decide_interrupt(:project_id, :channel_id, :interrupt_id, :caller, :decision,
                                             :action_digest, :asked::jsonb) d (decided);

-- name: list_expired :many
-- Rule 'interrupts': open questions whose time is over, of served targets.
SELECT q.interrupt_id, q.project_id, q.agent_id FROM state.interrupts q
JOIN resource.project_agents a ON a.agent_id = q.agent_id AND a.project_id = q.project_id
WHERE q.status = 'open' AND q.expires_at < now() - make_interval(secs => :older_seconds::float8)
  AND a.worker_target = ANY (:worker_targets::text[])
ORDER BY q.expires_at LIMIT :row_limit::int;

-- name: expire_interrupt :one
-- Closes a question that nobody answered in time; see its function.
SELECT e.expired FROM state.expire_interrupt(:interrupt_id) e (expired);
