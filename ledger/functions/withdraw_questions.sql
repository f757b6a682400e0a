-- Withdraws what its tool has asked people under a call that waits no more, whatever answered or dropped it.
CREATE OR REPLACE FUNCTION state.withdraw_questions() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE state.interrupts x SET status = 'withdrawn', decided_at = clock_timestamp()
    WHERE x.agent_turn_id = NEW.agent_turn_id AND x.tool_call_id = NEW.tool_call_id AND x.call_key IS NOT NULL
      AND x.status = 'open';
    NEW.left_seconds := NULL;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER questions_withdrawn BEFORE UPDATE OF wait_status ON state.turn_waiting_tools FOR EACH ROW
    WHEN (OLD.left_seconds IS NOT NULL AND NEW.wait_status <> 'waiting')
    EXECUTE FUNCTION state.withdraw_questions();
