-- A question to people is open no longer than its turn's time.
CREATE OR REPLACE FUNCTION state.bound_question() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.expires_at := least(NEW.expires_at, state.until_of_turn(NEW.agent_turn_id));
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER interrupts_bounded BEFORE INSERT ON state.interrupts
    FOR EACH ROW EXECUTE FUNCTION state.bound_question();
