-- Answers a held call, whose waiting row is locked, instead of its tool: card, inbox row, waiting row and edge.
-- `content` is that of the card. A call of a program of v1r4 has no waiting row (peer_call): the inbox row is due if
-- the caller's head has its turn, and else is there to be read.
CREATE OR REPLACE FUNCTION state.answer_held(w state.turn_waiting_tools, inbox text, channel text, author text,
    content jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    i state.agent_inbox;
    is_due boolean := true;
    trace text;
BEGIN
    UPDATE state.turn_waiting_tools x SET wait_status = 'received', received_at = now(), updated_at = now()
    WHERE x.tool_call_id = w.tool_call_id AND x.project_id = w.project_id;
    IF FOUND THEN
        SELECT x.* INTO i FROM state.agent_inbox x
        WHERE x.agent_turn_id = w.agent_turn_id AND x.message_type IN ('turn', 'ui_action') LIMIT 1;
    ELSE
        SELECT p.context_headers, p.in_hand INTO i.context_headers, is_due
        FROM state.peer_call(w.project_id, w.call_card_id) p;
    END IF;
    trace := split_part(i.context_headers ->> 'traceparent', '-', 2);
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    VALUES (w.tool_call_id || '-result', w.project_id, content, w.tool_call_id,
            jsonb_build_object('type', 'tool.result', 'role', 'tool', 'author_id', author, 'function_name', w.tool_name,
                'step_id', w.step_id, 'agent_turn_id', w.agent_turn_id, 'trace_id', trace)
            || CASE WHEN i.context_headers ->> 'CG-Parent-Step-Id' IS NULL THEN '{}'
                    ELSE jsonb_build_object('parent_step_id', i.context_headers -> 'CG-Parent-Step-Id') END
            || state.artifacts_of(content))
    ON CONFLICT DO NOTHING;
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode,
                                   correlation_id, agent_turn_id, turn_epoch, context_headers, payload, status,
                                   next_retry_at, archived_at, created_at)
    VALUES (inbox, w.project_id, w.agent_id, coalesce(channel, 'public'), 'tool_result', 'report', w.tool_call_id,
            w.agent_turn_id, w.turn_epoch, i.context_headers,
            jsonb_build_object('status', content ->> 'status', 'after_execution',
                CASE jsonb_typeof(content -> 'error') WHEN 'object' THEN content -> 'after_execution' END,
                'tool_result_card_id', w.tool_call_id || '-result'),
            CASE WHEN is_due THEN 'pending' ELSE 'consumed' END, now(), CASE WHEN NOT is_due THEN now() END,
            clock_timestamp())
    ON CONFLICT DO NOTHING;
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id,
                                       target_agent_turn_id, correlation_id, recursion_depth, trace_id, parent_step_id,
                                       metadata)
    VALUES ('report-' || w.tool_call_id, w.project_id, channel, 'report', 'response', w.agent_id, w.agent_turn_id,
            w.tool_call_id, coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0), trace, w.step_id,
            jsonb_build_object('status', content ->> 'status'))
    ON CONFLICT DO NOTHING;
END $$;
