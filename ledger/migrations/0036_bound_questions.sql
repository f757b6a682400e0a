-- The time of a turn (payload.budget.until, protocol §15) bounds its questions to people, whoever asks them, and the calls that
-- people let go: the turn sleeps no longer than until then.

CREATE FUNCTION state.until_of_turn(turn text) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT min((i.payload #>> '{budget,until}')::timestamptz) FROM state.agent_inbox i
    WHERE i.agent_turn_id = turn AND i.message_type IN ('turn', 'ui_action')
$$;

CREATE FUNCTION state.bound_question() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.expires_at := least(NEW.expires_at, state.until_of_turn(NEW.agent_turn_id));
    RETURN NEW;
END $$;
CREATE TRIGGER interrupts_bounded BEFORE INSERT ON state.interrupts FOR EACH ROW EXECUTE FUNCTION state.bound_question();

CREATE FUNCTION state.bound_released() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.deadline := least(NEW.deadline, state.until_of_turn(NEW.agent_turn_id));
    RETURN NEW;
END $$;
CREATE TRIGGER released_calls_bounded BEFORE UPDATE OF held_by ON state.turn_waiting_tools FOR EACH ROW
    WHEN (OLD.held_by IS NOT NULL AND NEW.held_by IS NULL AND NEW.deadline IS NOT NULL)
    EXECUTE FUNCTION state.bound_released();
