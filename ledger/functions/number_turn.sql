-- Numbers a turn of a conversation while the enqueue holds the conversation's row, so that turns commit in the order of
-- their numbers, whatever clocks say. A reader that has seen a number has missed none below it (protocol §14.2).
CREATE OR REPLACE FUNCTION state.number_turn() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.conversation_seq := nextval('state.conversation_seq');
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER turn_numbered BEFORE INSERT ON state.agent_inbox FOR EACH ROW
    WHEN (NEW.payload ? 'conversation_id') EXECUTE FUNCTION state.number_turn();
