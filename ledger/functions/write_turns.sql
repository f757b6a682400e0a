-- Writes new turns of a project, of which at most one is leased to each agent: inbox rows, heads, boxes, cards and
-- edges, in the order of `turns`. The caller has locked what it decided by. A correlation that another enqueue has used
-- meanwhile is a unique violation, and the transaction is repeated. Nothing else inserts rows of turns.
CREATE OR REPLACE FUNCTION state.write_turns(project text, turns state.new_turn[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode,
                                   correlation_id, agent_turn_id, turn_epoch, context_headers, payload, status,
                                   next_retry_at, processed_at, created_at, request_digest)
    SELECT t.inbox_id, project, t.agent_id, t.channel_id, t.message_type, 'call', t.correlation_id, t.agent_turn_id,
           t.turn_epoch, t.headers,
           jsonb_build_object('profile_box_id', t.profile_box_id, 'context_box_id', t.context_box_id,
                              'output_box_id', CASE  -- else its lease resolves it
                                  WHEN t.turn_epoch > 0 OR NOT t.settings ? 'conversation_id' THEN t.output_box_id END)
           || t.settings,
           CASE WHEN t.turn_epoch = 0 THEN 'queued' WHEN t.claimed THEN 'processing' ELSE 'pending' END,
           CASE WHEN t.turn_epoch = 0 THEN 'infinity' ELSE now() END, CASE WHEN t.claimed THEN now() END,
           t.created_at, t.request_digest
    FROM unnest(turns) t;
    -- Every enqueue changes the head, so that a finish that waits for the lock looks again. An upsert finds its rows by
    -- key in every plan.
    INSERT INTO state.agent_state_head AS h (project_id, agent_id, status, turn_epoch, queue_seq, active_agent_turn_id,
        active_inbox_id, active_channel_id, active_recursion_depth, parent_step_id, trace_id, profile_box_id,
        context_box_id, output_box_id)
    SELECT project, t.agent_id, 'dispatched', t.turn_epoch, 1, t.agent_turn_id, t.inbox_id, t.channel_id,
           (t.headers ->> 'CG-Recursion-Depth')::int, t.headers ->> 'CG-Parent-Step-Id',
           split_part(t.headers ->> 'traceparent', '-', 2), t.profile_box_id, t.context_box_id, t.output_box_id
    FROM unnest(turns) t WHERE t.turn_epoch > 0 ORDER BY t.agent_id
    ON CONFLICT (agent_id, project_id) DO UPDATE SET queue_seq = h.queue_seq + 1, (  -- what a lease begins to count
        status, turn_epoch, updated_at, active_agent_turn_id, active_inbox_id, active_channel_id,
        active_recursion_depth, parent_step_id, trace_id, profile_box_id, context_box_id, output_box_id,
        waiting_tool_count, resume_deadline, expecting_correlation_id, restart_count, output_position, step_count,
        step_attempt, model_failures, started_at, is_carried) = (
        EXCLUDED.status, EXCLUDED.turn_epoch, EXCLUDED.updated_at, EXCLUDED.active_agent_turn_id,
        EXCLUDED.active_inbox_id, EXCLUDED.active_channel_id, EXCLUDED.active_recursion_depth, EXCLUDED.parent_step_id,
        EXCLUDED.trace_id, EXCLUDED.profile_box_id, EXCLUDED.context_box_id, EXCLUDED.output_box_id,
        EXCLUDED.waiting_tool_count, EXCLUDED.resume_deadline, EXCLUDED.expecting_correlation_id,
        EXCLUDED.restart_count, EXCLUDED.output_position, EXCLUDED.step_count, EXCLUDED.step_attempt,
        EXCLUDED.model_failures, EXCLUDED.started_at, EXCLUDED.is_carried);
    INSERT INTO state.agent_state_head AS h (project_id, agent_id, queue_seq)
    SELECT DISTINCT project, t.agent_id, 1 FROM unnest(turns) t WHERE t.turn_epoch = 0
    ON CONFLICT (agent_id, project_id) DO UPDATE SET queue_seq = h.queue_seq + 1;
    UPDATE public.boxes b SET unused_of = NULL  -- the caller has locked it as one that is written
    WHERE b.box_id = ANY (ARRAY(SELECT unnest(t.inherits || t.output_box_id) FROM unnest(turns) t))
      AND b.unused_of IS NOT NULL;
    INSERT INTO public.boxes (box_id, tenant_id, parent_ids)
    SELECT b.box_id, project, b.parents FROM unnest(turns) t CROSS JOIN LATERAL (VALUES
        (t.context_box_id, t.inherits, t.makes_context), (t.output_box_id, '{}'::uuid[], t.makes_output)) b (box_id,
            parents, wanted)
    WHERE b.wanted;
    INSERT INTO public.cards (card_id, tenant_id, content, metadata)
    SELECT c ->> 'card_id', project, c -> 'content', c -> 'metadata' || jsonb_build_object(
               'trace_id', split_part(t.headers ->> 'traceparent', '-', 2),
               'parent_step_id', t.headers -> 'CG-Parent-Step-Id')
    FROM unnest(turns) t CROSS JOIN jsonb_array_elements(t.cards) c;
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT t.context_box_id, row_number() OVER (PARTITION BY t.context_box_id ORDER BY x.place, x.position), x.card_id
    FROM unnest(turns) t CROSS JOIN LATERAL (
        SELECT DISTINCT ON (y.card_id) y.place, y.position, y.card_id FROM (
            SELECT i.place, p.position, p.card_id FROM unnest(t.inherits) WITH ORDINALITY i (box_id, place)
            JOIN public.box_cards p ON p.box_id = i.box_id JOIN public.cards k ON k.card_id = p.card_id
            WHERE state.is_alive(k.expires_at, k.deleted_at)
            UNION ALL
            SELECT 1000000, o.position, o.c ->> 'card_id'
            FROM jsonb_array_elements(t.cards) WITH ORDINALITY o (c, position)) y
        ORDER BY y.card_id, y.place, y.position) x
    WHERE t.makes_context;
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id,
                                       source_agent_turn_id, source_step_id, target_agent_id, target_agent_turn_id,
                                       correlation_id, enqueue_mode, recursion_depth, trace_id, parent_step_id,
                                       metadata)
    SELECT 'enqueue-' || t.agent_turn_id, project, t.channel_id, 'enqueue', 'request',
           t.headers ->> 'CG-Parent-Agent-Id', t.headers ->> 'CG-Parent-Turn-Id', t.headers ->> 'CG-Parent-Step-Id',
           t.agent_id, t.agent_turn_id, t.correlation_id, 'call', (t.headers ->> 'CG-Recursion-Depth')::int,
           split_part(t.headers ->> 'traceparent', '-', 2), t.headers ->> 'CG-Parent-Step-Id', t.edge
    FROM unnest(turns) t
    ON CONFLICT DO NOTHING;
END $$;
