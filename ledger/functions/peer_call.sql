-- A call of a program of v1r4 (protocol §12.11), which has no turn of ours: its `tool.call` card, and what the program
-- wrote beside the command (an anchor; its bench an edge), read as the waiting row of a call and as the head that
-- sleeps for it. No verb makes such rows: our edges have a turn as their target. in_hand: the agent's head really has
-- that turn. No row: there is no such call.
CREATE OR REPLACE FUNCTION state.peer_call(project text, card text)
RETURNS TABLE (w state.turn_waiting_tools, h state.agent_state_head, context_headers jsonb, in_hand boolean)
LANGUAGE sql STABLE AS $$
    SELECT jsonb_populate_record(NULL::state.turn_waiting_tools, jsonb_build_object(
               'project_id', project, 'agent_id', p.agent_id, 'agent_turn_id', p.agent_turn_id,
               'turn_epoch', p.turn_epoch, 'step_id', coalesce(c.metadata ->> 'step_id', ''),
               'tool_call_id', c.tool_call_id, 'tool_name', c.content ->> 'tool_name', 'call_card_id', card,
               'wait_status', CASE WHEN EXISTS (
                   SELECT FROM state.agent_inbox r
                   WHERE r.correlation_id = c.tool_call_id AND r.project_id = project
                     AND r.message_type = 'tool_result') THEN 'received' ELSE 'waiting' END)),
           jsonb_populate_record(NULL::state.agent_state_head, jsonb_build_object(
               'project_id', project, 'agent_id', p.agent_id, 'status', 'suspended',
               'active_agent_turn_id', p.agent_turn_id, 'turn_epoch', p.turn_epoch, 'active_channel_id', p.channel_id,
               'active_recursion_depth', coalesce(state.as_count(p.context_headers ->> 'CG-Recursion-Depth'), 0),
               'trace_id', split_part(p.context_headers ->> 'traceparent', '-', 2))),
           p.context_headers, EXISTS (
               SELECT FROM state.agent_state_head x
               WHERE x.agent_id = p.agent_id AND x.project_id = project AND x.active_agent_turn_id = p.agent_turn_id
                 AND x.turn_epoch = p.turn_epoch)
    FROM public.cards c CROSS JOIN LATERAL (
        SELECT i.agent_id, i.agent_turn_id, i.turn_epoch, i.channel_id, i.context_headers FROM state.agent_inbox i
        WHERE i.correlation_id = c.tool_call_id AND i.project_id = project AND i.message_type = 'command_anchor'
          AND i.agent_id = c.metadata ->> 'author_id'
        UNION ALL
        SELECT e.source_agent_id, e.source_agent_turn_id, 0, coalesce(e.channel_id, 'public'), jsonb_build_object(
                   'traceparent', format('00-%s-%s-01', coalesce(replace(e.trace_id, '-', ''), md5(e.edge_id)),
                       left(md5(c.tool_call_id), 16)),
                   'CG-Recursion-Depth', coalesce(e.recursion_depth, 0)::text)
        FROM state.execution_edges e
        WHERE md5(e.correlation_id) = md5(c.tool_call_id) AND e.project_id = project AND e.primitive = 'enqueue'
          AND e.edge_phase = 'request' AND e.correlation_id = c.tool_call_id AND e.target_agent_turn_id IS NULL
          AND e.source_agent_id = c.metadata ->> 'author_id' AND e.source_agent_turn_id IS NOT NULL
        LIMIT 1) p
    WHERE c.card_id = card AND c.tenant_id = project AND c.metadata ->> 'type' = 'tool.call'
$$;
