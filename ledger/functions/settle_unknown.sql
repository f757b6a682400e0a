-- Settles a call that a replica began to run, if nobody runs it any more, as the caller has found out: a person is
-- asked whether it was done, or, where nobody may be asked, it failed. A call whose tool asks a person is not in doubt.
-- It runs with the caller's rights. Lock order: head, waiting row, interrupt, node.
-- verdict: asked | answered | settled (it was reported, is held, or its turn ends).
CREATE OR REPLACE FUNCTION state.settle_unknown(
    project text, call text, began_by text, question text, digest text, asks boolean, open_seconds float8) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    h state.agent_state_head;
    w state.turn_waiting_tools;
    known state.interrupts;
    stopping timestamptz;
    interrupt text;
    until timestamptz := clock_timestamp() + make_interval(secs => open_seconds);
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    SELECT x.* INTO h FROM state.agent_state_head x
    WHERE x.agent_id = w.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    SELECT x.* INTO w FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    SELECT n.stopping_at INTO stopping FROM state.turn_nodes n WHERE n.agent_turn_id = w.agent_turn_id FOR SHARE;
    IF w.wait_status IS DISTINCT FROM 'waiting' OR w.held_by IS NOT NULL OR w.left_seconds IS NOT NULL
        OR w.begun_by IS DISTINCT FROM began_by
       OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id OR h.turn_epoch <> w.turn_epoch
       OR h.status <> 'suspended'
       OR stopping IS NOT NULL
       OR EXISTS (SELECT FROM state.agent_inbox i WHERE i.correlation_id IN (w.agent_turn_id,
           'cascade-' || w.agent_turn_id)
                    AND i.project_id = project AND i.message_type = 'stop' AND i.archived_at IS NULL) THEN
        RETURN jsonb_build_object('verdict', 'settled');
    END IF;
    IF NOT asks THEN
        PERFORM state.answer_held(
            w, 'unknown-' || call, h.active_channel_id, 'system', state.unsent_result('failed', 'outcome_unknown',
            'the tool died after it had begun this call: nobody knows whether it was done, and it was not repeated'));
        UPDATE state.turn_waiting_tools x SET begun_by = NULL, doubted_at = NULL
        WHERE x.tool_call_id = call AND x.project_id = project;
        RETURN jsonb_build_object('verdict', 'answered');
    END IF;
    -- Who may decide is as with the question before, if there was one: a repeat is no way around a second pair of eyes.
    SELECT q.* INTO known FROM state.interrupts q
    WHERE q.agent_turn_id = w.agent_turn_id AND q.tool_call_id = call AND q.call_key IS NULL
    ORDER BY q.created_at LIMIT 1;
    interrupt := 'int-' || call || '-' || (
        SELECT count(*) + 1 FROM state.interrupts q WHERE q.agent_turn_id = w.agent_turn_id AND q.tool_call_id = call);
    INSERT INTO state.interrupts (interrupt_id, project_id, channel_id, agent_id, agent_turn_id, step_id, tool_call_id,
                                  tool_name, reason, message, action_digest, allowed_decisions, requester,
                                  requester_may_decide, wait_seconds, expires_at, created_at)
    SELECT interrupt, project, coalesce(h.active_channel_id, 'public'), w.agent_id, w.agent_turn_id, w.step_id, call,
           w.tool_name, 'confirmation', question, digest, ARRAY['approve', 'reject', 'respond'], coalesce((
               SELECT r.context_headers ->> 'CG-Sender' FROM state.turn_nodes n
               JOIN state.agent_inbox r ON r.agent_turn_id = n.root_turn_id
               WHERE n.agent_turn_id = w.agent_turn_id AND r.message_type IN ('turn', 'ui_action') LIMIT 1), (
               SELECT i.context_headers ->> 'CG-Sender' FROM state.agent_inbox i WHERE i.inbox_id = h.active_inbox_id)),
           coalesce(known.requester_may_decide, true),
           coalesce(known.wait_seconds, extract(epoch FROM coalesce(w.deadline,
               h.resume_deadline) - w.created_at)::float8, 120), until, clock_timestamp();
    UPDATE state.turn_waiting_tools x SET held_by = interrupt, deadline = NULL, begun_by = NULL, doubted_at = NULL,
        updated_at = now()
    WHERE x.tool_call_id = call AND x.project_id = project;
    UPDATE state.agent_state_head x SET updated_at = clock_timestamp(), resume_deadline = (
        SELECT min(coalesce(o.deadline, h.resume_deadline)) FROM state.turn_waiting_tools o
        WHERE o.agent_turn_id = w.agent_turn_id AND o.project_id = project AND o.wait_status = 'waiting'
          AND o.held_by IS NULL)
    WHERE x.agent_id = w.agent_id AND x.project_id = project;
    RETURN jsonb_build_object('verdict', 'asked', 'interrupt_id', interrupt, 'expires_at', until);
END $$;
