-- A call that people released waits no longer than its turn's time.
CREATE OR REPLACE FUNCTION state.bound_released() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.deadline := least(NEW.deadline, state.until_of_turn(NEW.agent_turn_id));
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER released_calls_bounded BEFORE UPDATE OF held_by ON state.turn_waiting_tools FOR EACH ROW
    WHEN (OLD.held_by IS NOT NULL AND NEW.held_by IS NULL AND NEW.deadline IS NOT NULL)
    EXECUTE FUNCTION state.bound_released();
