-- Closes a question that nobody answered in time; false if it is closed, or its time has not come. The call is
-- rejected; a question without a tool times out. Of a call that may have been done nobody says that it was not sent. A
-- question of a tool is closed, and its call's time goes on.
CREATE OR REPLACE FUNCTION state.expire_interrupt(interrupt text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    t state.interrupts;
    w state.turn_waiting_tools;
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
    IF w.wait_status = 'waiting' AND w.held_by = interrupt THEN
        PERFORM state.answer_held(w, 'decide-' || interrupt, t.channel_id, 'system', CASE t.reason
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
