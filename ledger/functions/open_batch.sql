-- Makes the batch of a call, with its tasks, which are not enqueued yet; those that were refused are over. The call is
-- held by it from then on, unless plan.call_key names it as one of its tool's: then the call goes on, and its deadline
-- stays. plan: the columns of the batch, and with peer_card_id the card of a call that has no waiting row (peer_call);
-- tasks: task_index, agent_id, profile_box_id, label, error_code, error of each.
-- verdict: accepted | duplicate | the code of a refusal.
CREATE OR REPLACE FUNCTION state.open_batch(project text, call text, plan jsonb, tasks jsonb) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w state.turn_waiting_tools;
    h state.agent_state_head;
    b state.pmo_batches;
    peer record;
    key text := plan ->> 'call_key';
    batch text := 'batch-' || call || coalesce('/' || key, '');
    stopping timestamptz;
    verdict text;
BEGIN
    IF plan ->> 'peer_card_id' IS NULL THEN
        SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    ELSE
        SELECT x.* INTO peer FROM state.peer_call(project, plan ->> 'peer_card_id') x;
        w := peer.w;
    END IF;
    IF w.tool_call_id IS DISTINCT FROM call THEN
        RETURN 'unknown_call';
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x
    WHERE x.agent_id = w.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM state.pmo_batches x WHERE x.batch_id = batch AND x.project_id = project) THEN
        RETURN 'duplicate';
    END IF;
    IF plan ->> 'peer_card_id' IS NULL THEN
        SELECT x.* INTO w FROM state.turn_waiting_tools x
        WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    ELSE
        h := peer.h;
    END IF;
    IF w.wait_status <> 'waiting' OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id
        OR h.turn_epoch <> w.turn_epoch
       -- it is timed out: whoever applies that would leave the batch without its call
       OR h.status <> 'suspended' OR EXISTS (
           SELECT FROM state.agent_inbox i
           WHERE i.correlation_id = call AND i.project_id = project AND i.message_type = 'timeout') THEN
        RETURN 'parent_over';
    END IF;
    IF w.held_by IS NOT NULL THEN
        RETURN 'not_sent';
    END IF;
    INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id)
    SELECT w.agent_turn_id, project, w.agent_turn_id WHERE plan ->> 'peer_card_id' IS NULL
    ON CONFLICT DO NOTHING;
    SELECT n.stopping_at INTO stopping FROM state.turn_nodes n WHERE n.agent_turn_id = w.agent_turn_id FOR SHARE;
    IF stopping IS NOT NULL THEN
        RETURN 'parent_stopping';
    END IF;
    INSERT INTO state.pmo_batches (batch_id, project_id, parent_agent_id, parent_agent_turn_id, parent_tool_call_id,
                                   parent_turn_epoch, parent_channel_id, task_count, deadline_at, join_mode, k,
                                   fail_fast, losers, answer, partial_at_deadline, summary_chars, open_count,
                                   failed_count, call_key, call_digest, peer_card_id)
    SELECT batch, project, w.agent_id, w.agent_turn_id, call, w.turn_epoch, h.active_channel_id, t.total,
           least(now() + make_interval(secs => p.deadline_seconds), (
               SELECT (i.payload -> 'budget' ->> 'until')::timestamptz FROM state.agent_inbox i
               WHERE i.agent_turn_id = w.agent_turn_id AND i.message_type IN ('turn', 'ui_action') LIMIT 1)),
                   p.join_mode, p.k, p.fail_fast, p.losers, p.answer, p.partial_at_deadline,
           least(p.summary_chars, greatest(500, 1000000 / greatest(t.total, 1)))::int,  -- a fork's result is one card
           t.total - t.refused, t.refused, key, plan ->> 'call_digest', plan ->> 'peer_card_id'
    FROM jsonb_to_record(plan) p (deadline_seconds float8, join_mode text, k int, fail_fast boolean, losers text,
                                  answer text, partial_at_deadline boolean, summary_chars int)
    CROSS JOIN (SELECT count(*) AS total, count(*) FILTER (WHERE x ->> 'error_code' IS NOT NULL) AS refused
        FROM jsonb_array_elements(tasks) x) t
    RETURNING * INTO b;
    INSERT INTO state.pmo_batch_tasks (batch_task_id, batch_id, project_id, agent_id, status, profile_box_id,
                                       task_index, label, error_code, error_detail)
    SELECT batch || '-' || t.task_index, batch, project, t.agent_id,
           CASE WHEN t.error_code IS NULL THEN 'pending' ELSE 'failed' END, t.profile_box_id, t.task_index, t.label,
           t.error_code, t.error
    FROM jsonb_to_recordset(tasks) t (task_index int, agent_id text, profile_box_id uuid, label text, error_code text,
        error text);
    IF key IS NULL THEN
        UPDATE state.turn_waiting_tools x SET held_by = batch, updated_at = now()
        WHERE x.tool_call_id = call AND x.project_id = project;
        UPDATE state.agent_state_head x SET resume_deadline = (  -- the batch has a deadline of its own
            SELECT min(coalesce(o.deadline, h.resume_deadline)) FROM state.turn_waiting_tools o
            WHERE o.agent_turn_id = w.agent_turn_id AND o.project_id = project AND o.turn_epoch = w.turn_epoch
              AND o.wait_status = 'waiting'
              AND o.held_by IS NULL)
        WHERE x.agent_id = w.agent_id AND x.project_id = project;
    END IF;
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id,
                                       source_agent_turn_id, source_step_id, target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    VALUES ('join-' || batch || '-request', project, h.active_channel_id, 'join', 'request', w.agent_id,
            w.agent_turn_id, w.step_id, w.agent_id, w.agent_turn_id, batch, h.active_recursion_depth, h.trace_id,
            w.step_id, jsonb_build_object('tool_call_id', call, 'tasks', b.task_count))
    ON CONFLICT DO NOTHING;
    verdict := state.verdict_of(b);
    IF verdict IS NOT NULL THEN
        PERFORM state.decide(batch, verdict, batch, 'canceled');
    END IF;
    RETURN 'accepted';
END $$;
