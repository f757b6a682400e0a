-- Delegating calls of programs of v1r4, which have no waiting row (protocol §10.12, §12.11).

-- name: find_peer_call :opt
-- A call by its `tool.call` card (state.peer_call), as find_call reads one; its caller as the roster has it. An agent
-- that is on no roster has no profile and no target.
SELECT (p.w).project_id, (p.w).tool_call_id, (p.w).tool_name, coalesce(c.content -> 'arguments', '{}') AS arguments,
       (p.w).wait_status = 'waiting' AS waits, NULL AS batch_id, false AS stopping, (p.w).agent_id,
       (p.w).agent_turn_id, (p.w).turn_epoch, (p.w).step_id, (p.h).active_channel_id AS channel_id,
       (p.h).active_recursion_depth AS depth, coalesce(a.worker_target, '') AS worker_target, p.context_headers,
       coalesce(a.profile_box_id::text, '') AS profile_box_id,
       coalesce(c.metadata ->> 'context_box_id', '') AS context_box_id,
       coalesce(CASE WHEN p.in_hand THEN h.output_box_id END::text, '') AS output_box_id,
       b.memory_context_box_id::text AS memory_context_box_id, b.last_output_box_id::text AS last_output_box_id,
       NULL AS deadline, c.card_id AS peer_card_id
FROM public.cards c CROSS JOIN LATERAL state.peer_call(c.tenant_id, c.card_id) p
LEFT JOIN resource.project_agents a ON a.agent_id = (p.w).agent_id AND a.project_id = c.tenant_id
LEFT JOIN state.agent_state_head h ON h.agent_id = (p.w).agent_id AND h.project_id = c.tenant_id
LEFT JOIN LATERAL state.channel_boxes(c.tenant_id, (p.h).active_channel_id, (p.w).agent_id) b ON true
WHERE c.card_id = :card_id AND c.tenant_id = :project_id AND c.tool_call_id = :tool_call_id;

-- name: answer_peer_call :opt
-- Writes the result's card and its inbox row, once. in_hand: the caller's turn waits for it. No row: it was answered
-- before.
SELECT 'pmo-' || :tool_call_id AS inbox_id, p.in_hand,
       state.answer_held(p.w, 'pmo-' || :tool_call_id, (p.h).active_channel_id, :author, :content::jsonb) AS answered
FROM state.peer_call(:project_id, :card_id) p WHERE (p.w).wait_status = 'waiting';
