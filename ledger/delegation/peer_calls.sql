-- Delegating calls of programs of v1r4, which have no waiting row (protocol §10.12, §12.11).

-- name: find_peer_call :opt
-- A call by its `tool.call` card and the anchor that its program wrote beside the command; its caller as the roster has
-- it, and whether it was answered.
SELECT i.project_id, i.channel_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.context_headers,
       c.tool_call_id, c.content ->> 'tool_name' AS tool_name, coalesce(c.content -> 'arguments', '{}') AS arguments,
       coalesce(c.metadata ->> 'step_id', '') AS step_id,
       coalesce(c.metadata ->> 'context_box_id', '') AS context_box_id,
       coalesce(h.output_box_id::text, '') AS output_box_id, a.profile_box_id::text AS profile_box_id, a.worker_target,
       EXISTS (SELECT FROM state.agent_inbox r
               WHERE r.correlation_id = c.tool_call_id AND r.project_id = c.tenant_id
                 AND r.message_type = 'tool_result') AS answered
FROM public.cards c
JOIN state.agent_inbox i ON i.correlation_id = c.tool_call_id AND i.project_id = c.tenant_id
    AND i.message_type = 'command_anchor' AND i.agent_id = c.metadata ->> 'author_id'
LEFT JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
    AND h.active_agent_turn_id = i.agent_turn_id
WHERE c.card_id = :card_id AND c.tenant_id = :project_id AND c.tool_call_id = :tool_call_id
  AND c.metadata ->> 'type' = 'tool.call';

-- name: answer_peer_call :opt
-- Writes the result's card and its inbox row, which is due if the caller's turn is in hand, and else is there to be
-- read. No row: it was answered before.
WITH anchor AS (
    SELECT i.*, EXISTS (
               SELECT FROM state.agent_state_head h
               WHERE h.agent_id = i.agent_id AND h.project_id = i.project_id
                 AND h.active_agent_turn_id = i.agent_turn_id AND h.turn_epoch = i.turn_epoch) AS in_hand
    FROM state.agent_inbox i
    WHERE i.correlation_id = :tool_call_id AND i.project_id = :project_id AND i.message_type = 'command_anchor'
),
row AS (
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode,
                                   correlation_id, agent_turn_id, turn_epoch, context_headers, payload, status,
                                   next_retry_at, archived_at, created_at)
    SELECT 'pmo-' || :tool_call_id, :project_id, a.agent_id, a.channel_id, 'tool_result', 'report', :tool_call_id,
           a.agent_turn_id, a.turn_epoch, a.context_headers,
           jsonb_build_object('status', :status::text, 'after_execution', :after_execution::text,
                              'tool_result_card_id', :tool_call_id || '-result'),
           CASE WHEN a.in_hand THEN 'pending' ELSE 'consumed' END, now(), CASE WHEN NOT a.in_hand THEN now() END,
           clock_timestamp()
    FROM anchor a
    ON CONFLICT DO NOTHING RETURNING inbox_id, agent_id, agent_turn_id, channel_id, turn_epoch, context_headers, status
),
card AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    SELECT :tool_call_id || '-result', :project_id, :content::jsonb, :tool_call_id,
           :metadata::jsonb || jsonb_build_object(
               'agent_turn_id', r.agent_turn_id,
               'trace_id', split_part(r.context_headers ->> 'traceparent', '-', 2))
    FROM row r
),
edge AS (
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id,
                                       target_agent_turn_id, correlation_id, recursion_depth, trace_id, metadata)
    SELECT 'report-' || :tool_call_id, :project_id, r.channel_id, 'report', 'response', r.agent_id, r.agent_turn_id,
           :tool_call_id, coalesce(state.as_count(r.context_headers ->> 'CG-Recursion-Depth'), 0),
           split_part(r.context_headers ->> 'traceparent', '-', 2), jsonb_build_object('status', :status::text)
    FROM row r
    ON CONFLICT DO NOTHING
)
SELECT r.inbox_id, r.status = 'pending' AS in_hand FROM row r;
