-- Batches of calls that are tools' own (protocol §12, tools that ask agents): a tool asks for children under the call that it runs, by a
-- key of its own. Such a batch does not hold its call, which the tool reports itself, and its decision is kept in its row: the tool
-- hears it when it asks, again and again the same. `call_key` is null for the batch of a delegating call, as before.
--
-- Bridges and workers of the version before open no batch with a key, and end the children of one as those of this version do.

ALTER TABLE state.pmo_batches ADD COLUMN call_key text, ADD COLUMN call_digest text, ADD COLUMN result jsonb;
COMMENT ON COLUMN state.pmo_batches.call_key IS 'the name that a tool gave it; null if it is the call''s own, which it holds and answers';
COMMENT ON COLUMN state.pmo_batches.call_digest IS 'with call_key: the hash of what was asked, so that a key means one thing';
COMMENT ON COLUMN state.pmo_batches.result IS 'with call_key: what it was decided as, for the tool; null while it runs and if it was withdrawn';

-- As in 0024, and for a batch with a key keeps the answer in its row instead of answering the call.
CREATE OR REPLACE FUNCTION state.tell_parent(b state.pmo_batches, verdict text, late text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    w state.turn_waiting_tools;
    i state.agent_inbox;
    told jsonb;
    trace text;
    depth integer;
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = b.parent_tool_call_id AND x.project_id = b.project_id FOR NO KEY UPDATE;
    IF w.wait_status IS DISTINCT FROM 'waiting' THEN
        RETURN false;  -- the parent was over first, or its tool has answered
    END IF;
    SELECT CASE b.answer WHEN 'join' THEN jsonb_build_object('status', verdict, 'results', jsonb_agg(r.told ORDER BY r.task_index))
                         ELSE jsonb_agg(r.told - 'task_index' - 'label' - 'summary' || jsonb_build_object('value', r.value)) -> 0 END INTO told
    FROM (
        SELECT t.task_index, CASE WHEN c.card_id IS NULL THEN 'null' ELSE state.value_of_card(c.content) END AS value, jsonb_build_object(
                   'task_index', t.task_index, 'label', t.label, 'status', CASE t.status WHEN 'dispatched' THEN late ELSE t.status END,
                   'summary', left(state.value_of_card(c.content) #>> '{}', 500), 'output_box_id', t.output_box_id,
                   'error', CASE t.status WHEN 'dispatched' THEN CASE late WHEN 'timeout' THEN 'deadline' WHEN 'canceled' THEN 'batch_decided' END
                                          ELSE t.error_code END,
                   'agent_id', nullif(t.agent_id, ''), 'agent_turn_id', t.current_agent_turn_id,
                   'deliverable_card_id', t.deliverable_card_id) AS told
        FROM state.pmo_batch_tasks t LEFT JOIN LATERAL (
            SELECT x.card_id, x.content FROM public.cards x WHERE x.card_id = t.deliverable_card_id AND x.tenant_id = b.project_id OFFSET 0) c ON true
        WHERE t.batch_id = b.batch_id) r;
    SELECT x.* INTO i FROM state.agent_inbox x
    WHERE x.agent_turn_id = b.parent_agent_turn_id AND x.message_type IN ('turn', 'ui_action') LIMIT 1;
    trace := split_part(i.context_headers ->> 'traceparent', '-', 2);
    depth := coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0);
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    VALUES ('join-' || b.batch_id || '-response', b.project_id, b.parent_channel_id, 'join', 'response', w.agent_id, w.agent_turn_id,
            b.batch_id, depth, trace, w.step_id, jsonb_build_object('status', verdict))
    ON CONFLICT DO NOTHING;
    IF b.call_key IS NOT NULL THEN
        UPDATE state.pmo_batches x SET result = told WHERE x.batch_id = b.batch_id;
        RETURN true;
    END IF;
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    VALUES (w.tool_call_id || '-result', b.project_id, jsonb_build_object(
                '__type__', 'ToolResultContent', 'status', verdict, 'after_execution', state.after_execution_of(b.project_id, w.tool_name),
                'error', NULL, 'result', told),
            w.tool_call_id, jsonb_build_object('type', 'tool.result', 'role', 'tool', 'author_id', 'sys.pmo', 'function_name', w.tool_name,
                'step_id', w.step_id, 'agent_turn_id', w.agent_turn_id, 'trace_id', trace))
    ON CONFLICT DO NOTHING;
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                                   turn_epoch, context_headers, payload, status, next_retry_at, created_at)
    VALUES ('join-' || b.batch_id, b.project_id, w.agent_id, coalesce(b.parent_channel_id, 'public'), 'tool_result', 'report', w.tool_call_id,
            w.agent_turn_id, w.turn_epoch, i.context_headers,
            jsonb_build_object('status', verdict, 'after_execution', NULL, 'tool_result_card_id', w.tool_call_id || '-result'),
            'pending', now(), clock_timestamp())
    ON CONFLICT DO NOTHING;
    UPDATE state.turn_waiting_tools x SET wait_status = 'received', received_at = now(), updated_at = now()
    WHERE x.tool_call_id = w.tool_call_id AND x.project_id = w.project_id;
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    VALUES ('report-' || w.tool_call_id, b.project_id, b.parent_channel_id, 'report', 'response', w.agent_id, w.agent_turn_id,
            w.tool_call_id, depth, trace, w.step_id, jsonb_build_object('status', verdict))
    ON CONFLICT DO NOTHING;
    RETURN true;
END $$;

-- As in 0024, and with plan.call_key opens one of the batches that a tool has under its call: the call is not held, and its deadline stays.
CREATE OR REPLACE FUNCTION state.open_batch(project text, call text, plan jsonb, tasks jsonb) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w state.turn_waiting_tools;
    h state.agent_state_head;
    b state.pmo_batches;
    key text := plan ->> 'call_key';
    batch text := 'batch-' || call || coalesce('/' || key, '');
    stopping timestamptz;
    verdict text;
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    IF NOT FOUND THEN
        RETURN 'unknown_call';
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x WHERE x.agent_id = w.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM state.pmo_batches x WHERE x.batch_id = batch AND x.project_id = project) THEN
        RETURN 'duplicate';
    END IF;
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    IF w.wait_status <> 'waiting' OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id OR h.turn_epoch <> w.turn_epoch
       OR h.status <> 'suspended' THEN
        RETURN 'parent_over';
    END IF;
    IF w.held_by IS NOT NULL THEN
        RETURN 'not_sent';
    END IF;
    INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id) VALUES (w.agent_turn_id, project, w.agent_turn_id)
    ON CONFLICT DO NOTHING;
    SELECT n.stopping_at INTO stopping FROM state.turn_nodes n WHERE n.agent_turn_id = w.agent_turn_id FOR SHARE;
    IF stopping IS NOT NULL THEN
        RETURN 'parent_stopping';
    END IF;
    INSERT INTO state.pmo_batches (batch_id, project_id, parent_agent_id, parent_agent_turn_id, parent_tool_call_id, parent_turn_epoch,
                                   parent_channel_id, task_count, deadline_at, join_mode, k, fail_fast, losers, answer, partial_at_deadline,
                                   open_count, failed_count, call_key, call_digest)
    SELECT batch, project, w.agent_id, w.agent_turn_id, call, w.turn_epoch, h.active_channel_id, t.total,
           now() + make_interval(secs => p.deadline_seconds), p.join_mode, p.k, p.fail_fast, p.losers, p.answer, p.partial_at_deadline,
           t.total - t.refused, t.refused, key, plan ->> 'call_digest'
    FROM jsonb_to_record(plan) p (deadline_seconds float8, join_mode text, k int, fail_fast boolean, losers text, answer text,
                                  partial_at_deadline boolean)
    CROSS JOIN (SELECT count(*) AS total, count(*) FILTER (WHERE x ->> 'error_code' IS NOT NULL) AS refused FROM jsonb_array_elements(tasks) x) t
    RETURNING * INTO b;
    INSERT INTO state.pmo_batch_tasks (batch_task_id, batch_id, project_id, agent_id, status, profile_box_id, task_index, label, error_code,
                                       error_detail)
    SELECT batch || '-' || t.task_index, batch, project, t.agent_id, CASE WHEN t.error_code IS NULL THEN 'pending' ELSE 'failed' END,
           t.profile_box_id, t.task_index, t.label, t.error_code, t.error
    FROM jsonb_to_recordset(tasks) t (task_index int, agent_id text, profile_box_id uuid, label text, error_code text, error text);
    IF key IS NULL THEN
        UPDATE state.turn_waiting_tools x SET held_by = batch, updated_at = now() WHERE x.tool_call_id = call AND x.project_id = project;
        UPDATE state.agent_state_head x SET resume_deadline = (  -- the batch has a deadline of its own
            SELECT min(coalesce(o.deadline, h.resume_deadline)) FROM state.turn_waiting_tools o
            WHERE o.agent_turn_id = w.agent_turn_id AND o.project_id = project AND o.turn_epoch = w.turn_epoch AND o.wait_status = 'waiting'
              AND o.held_by IS NULL)
        WHERE x.agent_id = w.agent_id AND x.project_id = project;
    END IF;
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id, source_agent_turn_id,
                                       source_step_id, target_agent_id, target_agent_turn_id, correlation_id, recursion_depth, trace_id,
                                       parent_step_id, metadata)
    VALUES ('join-' || batch || '-request', project, h.active_channel_id, 'join', 'request', w.agent_id, w.agent_turn_id, w.step_id,
            w.agent_id, w.agent_turn_id, batch, h.active_recursion_depth, h.trace_id, w.step_id,
            jsonb_build_object('tool_call_id', call, 'tasks', b.task_count))
    ON CONFLICT DO NOTHING;
    verdict := state.verdict_of(b);
    IF verdict IS NOT NULL THEN
        PERFORM state.decide(batch, verdict, batch, 'canceled');
    END IF;
    RETURN 'accepted';
END $$;

-- state.enqueue_children as it stands, but for one expression: the correlation of a batch's child is named after the batch, of which a call
-- may now have several. For a batch without a key and for a child without a batch that is the same name as before.
DO $$
DECLARE
    found text := pg_get_functiondef('state.enqueue_children(text, text, text, jsonb, integer, integer)'::regprocedure);
    changed text := replace(found, 'call || ''-'' || c.task_index AS correlation',
                            'coalesce(substr(batch, 7), call) || ''-'' || c.task_index AS correlation');
BEGIN
    IF changed = found THEN
        RAISE EXCEPTION 'state.enqueue_children is not the one of migration 0024';
    END IF;
    EXECUTE changed;
END $$;
