-- The time of a call goes on once no question of its tool is open; else its deadline is put off until the last of them,
-- and what was left after that. The head's deadline follows. Of a call that waits no more nothing is changed. Returns
-- the call's deadline. Head and waiting row are locked.
CREATE OR REPLACE FUNCTION state.resume_call(w state.turn_waiting_tools) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz;
    due timestamptz;
BEGIN
    SELECT max(q.expires_at) INTO until FROM state.interrupts q
    WHERE q.agent_turn_id = w.agent_turn_id AND q.tool_call_id = w.tool_call_id AND q.call_key IS NOT NULL
      AND q.status = 'open';
    UPDATE state.turn_waiting_tools x SET updated_at = now(),
           left_seconds = CASE WHEN until IS NOT NULL THEN x.left_seconds END,
           deadline = least(coalesce(until, clock_timestamp()) + make_interval(secs => x.left_seconds),
               state.until_of_turn(x.agent_turn_id))
    WHERE x.tool_call_id = w.tool_call_id AND x.project_id = w.project_id AND x.wait_status = 'waiting'
      AND x.left_seconds IS NOT NULL
    RETURNING x.deadline INTO due;
    -- updated_at: a timeout that waits for the lock would not see this call's deadline
    UPDATE state.agent_state_head h SET updated_at = clock_timestamp(), resume_deadline = (
        SELECT min(coalesce(o.deadline, h.resume_deadline)) FROM state.turn_waiting_tools o
        WHERE o.agent_turn_id = w.agent_turn_id AND o.project_id = w.project_id AND o.wait_status = 'waiting'
          AND o.held_by IS NULL)
    WHERE h.agent_id = w.agent_id AND h.project_id = w.project_id AND due IS NOT NULL;
    RETURN due;
END $$;
