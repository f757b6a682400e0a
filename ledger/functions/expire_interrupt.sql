-- Closes a question that nobody answered in time; false if it is closed, or its time has not come. The call is
-- rejected; a question without a tool times out. Of a call that may have been done nobody says that it was not sent. A
-- question of a tool is closed, and its call's time goes on. A call that its client runs times out; where that ends its
-- turn (on_expiry cancel), its time begins when it waits for its client alone, since only then is it handed over: until
-- then it is put off, but not beyond the turn's own time.
CREATE OR REPLACE FUNCTION state.expire_interrupt(interrupt text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    t state.interrupts;
    w state.turn_waiting_tools;
    begins timestamptz;
    content jsonb;
BEGIN
    SELECT x.* INTO t FROM state.interrupts x WHERE x.interrupt_id = interrupt;
    PERFORM FROM state.agent_state_head x
    WHERE x.agent_id = t.agent_id AND x.project_id = t.project_id FOR NO KEY UPDATE;
    SELECT x.* INTO w FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = t.tool_call_id AND x.project_id = t.project_id FOR NO KEY UPDATE;
    SELECT x.* INTO t FROM state.interrupts x WHERE x.interrupt_id = interrupt FOR NO KEY UPDATE;
    IF t.status IS DISTINCT FROM 'open' OR t.expires_at > clock_timestamp() THEN
        RETURN false;
    END IF;
    IF t.call_key IS NOT NULL THEN
        UPDATE state.interrupts x SET status = 'expired', decided_by = 'system', decided_at = clock_timestamp()
        WHERE x.interrupt_id = interrupt;
        PERFORM state.resume_call(w);
        RETURN true;
    END IF;
    IF t.on_expiry = 'cancel' AND coalesce(state.until_of_turn(t.agent_turn_id), 'infinity') > clock_timestamp() THEN
        SELECT max(CASE x.wait_status WHEN 'waiting' THEN clock_timestamp() ELSE x.received_at END) INTO begins
        FROM state.turn_waiting_tools x LEFT JOIN state.interrupts q ON q.interrupt_id = x.held_by
        WHERE x.agent_turn_id = t.agent_turn_id AND x.project_id = t.project_id AND x.step_id = t.step_id
          AND q.reason IS DISTINCT FROM 'client_tool';
        begins := least(begins + make_interval(secs => t.wait_seconds), state.until_of_turn(t.agent_turn_id));
        IF begins > clock_timestamp() THEN
            UPDATE state.interrupts x SET expires_at = begins WHERE x.interrupt_id = interrupt;
            RETURN false;
        END IF;
        content := state.unsent_result('canceled', 'client_gone', 'the client did not answer in time')
            || '{"after_execution": "terminate"}';
    END IF;
    IF w.wait_status = 'waiting' AND w.held_by = interrupt THEN
        PERFORM state.answer_held(w, 'decide-' || interrupt, t.channel_id, 'system', CASE t.reason
            WHEN 'client_tool' THEN coalesce(content,
                state.unsent_result('timeout', 'tool_timeout', 'the client did not answer in time'))
            WHEN 'input_required' THEN state.unsent_result('timeout', 'no_answer', 'nobody answered in time')
            WHEN 'confirmation' THEN state.unsent_result('failed', 'outcome_unknown',
                'nobody said in time whether this call was done: it was not repeated')
            ELSE state.unsent_result('failed', 'approval_expired', 'nobody approved this call in time: it was not sent')
                END);
        UPDATE state.turn_waiting_tools x SET held_by = NULL
        WHERE x.tool_call_id = w.tool_call_id AND x.project_id = w.project_id;
    END IF;
    UPDATE state.interrupts x SET status = 'expired', decided_by = 'system', decided_at = clock_timestamp()
    WHERE x.interrupt_id = interrupt;
    RETURN true;
END $$;
