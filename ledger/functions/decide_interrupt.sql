-- Decides a question, once. `who` is the principal; asked: digest (the hash of the whole decision), message, and
-- operates (whether an operator asks), response (the value) or card (an edited call card: card_id, content, metadata)
-- with action_digest (of the edited action). A call that is approved or edited is no longer held, and its time begins;
-- its command is published after the commit. One that is rejected or responded to has its result. What a tool has
-- asked under its call is answered in its own row, and settles nothing.
-- verdict: accepted | duplicate (the same decision, by the same principal) | already_decided | expired | withdrawn |
-- unknown_interrupt | not_yours | own_request | own_words | decision_not_allowed | digest_mismatch. It runs with the
-- caller's rights: a worker has none to decide.
CREATE OR REPLACE FUNCTION state.decide_interrupt(project text, channel text, interrupt text, who text, wanted text,
    digest text, asked jsonb)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    t state.interrupts;
    h state.agent_state_head;
    w state.turn_waiting_tools;
    stopping timestamptz;
    changed boolean := false;
    due timestamptz;
    place bigint;
BEGIN
    SELECT x.* INTO t FROM state.interrupts x
    WHERE x.interrupt_id = interrupt AND x.project_id = project AND x.channel_id = channel;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('verdict', 'unknown_interrupt');
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x
    WHERE x.agent_id = t.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    SELECT x.* INTO w FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = t.tool_call_id AND x.project_id = project FOR NO KEY UPDATE;
    SELECT x.* INTO t FROM state.interrupts x WHERE x.interrupt_id = interrupt FOR NO KEY UPDATE;
    IF t.status = 'resolved' THEN
        RETURN jsonb_build_object(
            'verdict', CASE WHEN (t.decided_by, t.decision, t.decision_digest) = (who, wanted, asked ->> 'digest')
                THEN 'duplicate'
                            ELSE 'already_decided' END,
            'decision', t.decision, 'decided_by', t.decided_by, 'tool_changed', t.tool_changed);
    ELSIF t.status IN ('expired', 'withdrawn') THEN
        RETURN jsonb_build_object('verdict', t.status);
    END IF;
    IF h.active_agent_turn_id IS DISTINCT FROM t.agent_turn_id OR h.status <> 'suspended'
        OR h.turn_epoch <> w.turn_epoch
       OR w.wait_status IS DISTINCT FROM 'waiting' OR w.held_by IS DISTINCT FROM interrupt AND t.call_key IS NULL
       OR EXISTS (SELECT FROM state.agent_inbox i WHERE i.correlation_id IN (t.agent_turn_id,
           'cascade-' || t.agent_turn_id)
                    AND i.project_id = project AND i.message_type = 'stop' AND i.archived_at IS NULL) THEN
        RETURN jsonb_build_object('verdict', 'withdrawn');
    END IF;
    IF NOT t.requester_may_decide THEN  -- a report locks its call alone: one that is on its way may be older than this
        PERFORM FROM state.turn_waiting_tools x
        WHERE x.agent_turn_id = t.agent_turn_id AND x.project_id = project AND x.wait_status = 'waiting'
        ORDER BY x.tool_call_id FOR SHARE;
    END IF;
    SELECT n.stopping_at INTO stopping FROM state.turn_nodes n WHERE n.agent_turn_id = t.agent_turn_id FOR SHARE;
    IF stopping IS NOT NULL THEN
        RETURN jsonb_build_object('verdict', 'withdrawn');
    ELSIF t.expires_at <= clock_timestamp() AND t.on_expiry <> 'cancel' THEN  -- its time may be put off
        RETURN jsonb_build_object('verdict', 'expired');
    ELSIF t.only_requester AND t.requester IS DISTINCT FROM who
        AND NOT (wanted = 'reject' AND asked ? 'operates') THEN
        RETURN jsonb_build_object('verdict', 'not_yours');
    ELSIF t.requester = who AND NOT t.requester_may_decide THEN
        RETURN jsonb_build_object('verdict', 'own_request');
    ELSIF NOT t.requester_may_decide AND state.has_words(t, who) THEN
        RETURN jsonb_build_object('verdict', 'own_words');
    ELSIF wanted <> ALL (t.allowed_decisions) THEN
        RETURN jsonb_build_object('verdict', 'decision_not_allowed');
    ELSIF t.action_digest IS DISTINCT FROM digest THEN
        RETURN jsonb_build_object('verdict', 'digest_mismatch');
    END IF;
    IF t.call_key IS NOT NULL THEN  -- its tool waits for the answer, and reports the call
        UPDATE state.interrupts x SET status = 'resolved', decision = wanted, decision_digest = asked ->> 'digest',
               decided_by = who,
               comment = nullif(asked ->> 'message', ''), decided_at = clock_timestamp(),
               response = CASE wanted WHEN 'respond' THEN asked -> 'response' END
        WHERE x.interrupt_id = interrupt;
        RETURN jsonb_build_object('verdict', 'accepted', 'decision', wanted, 'decided_by', who, 'tool_changed', false,
                                  'sent', false, 'deadline', state.resume_call(w));
    END IF;
    IF wanted IN ('approve', 'edit') THEN
        changed := t.tool_pin IS NOT NULL AND NOT EXISTS (
            SELECT FROM resource.tools x WHERE x.tool_name = t.tool_name AND x.project_id = project
              AND x.target_subject IS NOT DISTINCT FROM t.tool_pin ->> 'target_subject'
              AND coalesce(nullif(x.parameters, 'null'), '{}') = t.tool_pin -> 'parameters')
            AND (t.tool_pin ->> 'target_subject' NOT LIKE '%.cmd.sys.pmo.internal.%'  -- a delegating tool needs no row
                 OR EXISTS (SELECT FROM resource.tools x WHERE x.tool_name = t.tool_name AND x.project_id = project));
        changed := changed OR (wanted = 'edit' AND asked -> 'card' IS NULL);  -- whoever checked the edit found no tool
        IF changed THEN
            PERFORM state.answer_held(w, 'decide-' || interrupt, t.channel_id, 'system',
                state.unsent_result('failed', 'tool_changed',
                    'the tool was changed after a person was asked about this call: it was not sent'));
        END IF;
    ELSIF wanted = 'reject' THEN
        PERFORM state.answer_held(w, 'decide-' || interrupt, t.channel_id,
            CASE t.reason WHEN 'client_tool' THEN 'sys.client' ELSE 'sys.people' END, CASE t.reason
                WHEN 'client_tool' THEN state.unsent_result('failed', 'client_tool_failed',
                    coalesce(nullif(asked ->> 'message', ''), 'the client could not run this call'))
                ELSE state.unsent_result('failed', 'rejected', coalesce(nullif(asked ->> 'message', ''),
                    'a person rejected this call')) END);
    ELSE
        PERFORM state.answer_held(w, 'decide-' || interrupt, t.channel_id,
            CASE t.reason WHEN 'client_tool' THEN 'sys.client' ELSE 'sys.people' END, jsonb_build_object(
            '__type__', 'ToolResultContent', 'status', 'success', 'after_execution',
            CASE t.reason WHEN 'client_tool' THEN 'suspend'  -- whatever a row of this name says
                          ELSE state.after_execution_of(project, w.tool_name) END,
            'result', jsonb_build_object('value', asked -> 'response'), 'error', NULL));
    END IF;
    IF wanted = 'edit' AND NOT changed THEN
        SELECT greatest(h.output_position, max(b.position)) + 1 INTO place FROM public.box_cards b
        WHERE b.box_id = h.output_box_id;
        INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
        VALUES (asked -> 'card' ->> 'card_id', project, asked -> 'card' -> 'content', w.tool_call_id,
            asked -> 'card' -> 'metadata' || CASE WHEN h.parent_step_id IS NULL THEN '{}'
                ELSE jsonb_build_object('parent_step_id', h.parent_step_id) END);
        INSERT INTO public.box_cards (box_id, position, card_id)
        VALUES (h.output_box_id, place, asked -> 'card' ->> 'card_id');
    END IF;
    IF wanted IN ('approve', 'edit') AND NOT changed THEN
        UPDATE state.turn_waiting_tools x SET held_by = NULL, updated_at = now(),
               deadline = clock_timestamp() + make_interval(secs => t.wait_seconds),
               call_card_id = coalesce(CASE wanted WHEN 'edit' THEN asked -> 'card' ->> 'card_id' END, x.call_card_id)
        WHERE x.tool_call_id = w.tool_call_id AND x.project_id = project
        RETURNING x.deadline INTO due;
        -- updated_at: a timeout of other calls, which waits for the lock, would not see this one's deadline
        UPDATE state.agent_state_head x SET resume_deadline = least(x.resume_deadline, due),
               updated_at = clock_timestamp(),
               output_position = coalesce(place, x.output_position)
        WHERE x.agent_id = t.agent_id AND x.project_id = project;
    ELSE
        UPDATE state.turn_waiting_tools x SET held_by = NULL
        WHERE x.tool_call_id = w.tool_call_id AND x.project_id = project;
    END IF;
    UPDATE state.interrupts x SET status = 'resolved', decision = wanted, decision_digest = asked ->> 'digest',
           decided_by = who,
           comment = nullif(asked ->> 'message', ''), tool_changed = changed, decided_at = clock_timestamp(),
           edited_digest = CASE wanted WHEN 'edit' THEN asked ->> 'action_digest' END
    WHERE x.interrupt_id = interrupt;
    RETURN jsonb_build_object('verdict', 'accepted', 'decision', wanted, 'decided_by', who, 'tool_changed', changed,
                              'sent', due IS NOT NULL, 'deadline', due);
END $$;
