-- Answers the parent's call with what the batch came to: card, inbox row, waiting row, edges. False if the call waits
-- no more. The batch is locked; what it lists is read with a snapshot newer than the lock. A batch with a key is one of
-- a tool's (protocol §12.10): its call is not answered, and what it came to is kept in its row for the tool, which
-- hears the same whenever it asks. A call of a program of v1r4 has no waiting row (peer_call). A task without a budget
-- that fits says what there was. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.tell_parent(b state.pmo_batches, verdict text, late text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    w state.turn_waiting_tools;
    peer record;
    i state.agent_inbox;
    told jsonb;
    files jsonb;
    trace text;
    depth integer;
BEGIN
    IF b.peer_card_id IS NULL THEN
        SELECT x.* INTO w FROM state.turn_waiting_tools x
        WHERE x.tool_call_id = b.parent_tool_call_id AND x.project_id = b.project_id FOR NO KEY UPDATE;
    ELSE
        SELECT x.* INTO peer FROM state.peer_call(b.project_id, b.peer_card_id) x;
        w := peer.w;
    END IF;
    IF w.wait_status IS DISTINCT FROM 'waiting' THEN
        RETURN false;  -- the parent was over first, or its tool has answered
    END IF;
    SELECT CASE b.answer WHEN 'join' THEN jsonb_build_object('status', verdict, 'results',
        jsonb_agg(r.told ORDER BY r.task_index))
                         ELSE jsonb_agg(r.told - 'task_index' - 'label' - 'summary' ||
                             jsonb_build_object('value', r.value)) -> 0 END,
        jsonb_path_query_array(jsonb_agg(r.parts ORDER BY r.task_index), 'lax $[*][*]')
    INTO told, files
    FROM (
        SELECT t.task_index, coalesce(c.content -> 'parts', '[]') AS parts,
               CASE WHEN c.card_id IS NULL THEN 'null' ELSE state.value_of_card(c.content) END AS value,
                   jsonb_build_object(
                   'task_index', t.task_index, 'label', t.label, 'status',
                   CASE t.status WHEN 'dispatched' THEN late ELSE t.status END, 'summary',
                   left(state.digest_of(state.value_of_card(c.content)), b.summary_chars),
                   'output_box_id', t.output_box_id, 'error',
                   CASE t.status WHEN 'dispatched' THEN CASE late WHEN 'timeout' THEN 'deadline'
                   WHEN 'canceled' THEN 'batch_decided' END
                                          ELSE t.error_code END,
                   'agent_id', nullif(t.agent_id, ''), 'agent_turn_id', t.current_agent_turn_id,
                   'deliverable_card_id', t.deliverable_card_id)
               || CASE t.error_code WHEN 'budget_exceeded' THEN jsonb_build_object('error_detail',
                   t.error_detail::jsonb) ELSE '{}' END AS told
        FROM state.pmo_batch_tasks t LEFT JOIN LATERAL (
            SELECT x.card_id, x.content FROM public.cards x
            WHERE x.card_id = t.deliverable_card_id AND x.tenant_id = b.project_id OFFSET 0) c ON true
        WHERE t.batch_id = b.batch_id) r;
    IF b.peer_card_id IS NULL THEN
        SELECT x.* INTO i FROM state.agent_inbox x
        WHERE x.agent_turn_id = b.parent_agent_turn_id AND x.message_type IN ('turn', 'ui_action') LIMIT 1;
    ELSE
        i.context_headers := peer.context_headers;
    END IF;
    trace := split_part(i.context_headers ->> 'traceparent', '-', 2);
    depth := coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0);
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id,
                                       target_agent_turn_id, correlation_id, recursion_depth, trace_id, parent_step_id,
                                       metadata)
    VALUES ('join-' || b.batch_id || '-response', b.project_id, b.parent_channel_id, 'join', 'response', w.agent_id,
            w.agent_turn_id, b.batch_id, depth, trace, w.step_id, jsonb_build_object('status', verdict))
    ON CONFLICT DO NOTHING;
    IF b.call_key IS NOT NULL THEN
        UPDATE state.pmo_batches x SET result = told WHERE x.batch_id = b.batch_id;
        RETURN true;
    END IF;
    PERFORM state.answer_held(w, 'join-' || b.batch_id, b.parent_channel_id, 'sys.pmo', jsonb_build_object(
        '__type__', 'ToolResultContent', 'status', verdict, 'after_execution',
        state.after_execution_of(b.project_id, w.tool_name), 'result', told, 'error', CASE
            -- v1r4's card reader wants one, and writes this one
            WHEN verdict <> 'success' THEN jsonb_build_object('code', 'batch_failed', 'message',
                'batch finished with status=' || verdict) END)
        || CASE files WHEN '[]' THEN '{}' ELSE jsonb_build_object('parts', files) END);
    RETURN true;
END $$;
