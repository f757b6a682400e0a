-- The place of a turn in its conversation: a number that is drawn while the enqueue holds the conversation's row, so that turns commit in
-- the order of their numbers, whatever clocks say. A reader that has seen a number has missed none below it (protocol §14.2). Of turns from
-- before it is 0: they come first, in the order of created_at.
CREATE SEQUENCE state.conversation_seq;
ALTER TABLE state.agent_inbox ADD COLUMN conversation_seq bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN state.agent_inbox.conversation_seq IS 'the place of a turn among those of its conversation';

CREATE FUNCTION state.number_turn() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.conversation_seq := nextval('state.conversation_seq');
    RETURN NEW;
END $$;
CREATE TRIGGER turn_numbered BEFORE INSERT ON state.agent_inbox FOR EACH ROW
    WHEN (NEW.payload ? 'conversation_id') EXECUTE FUNCTION state.number_turn();

CREATE INDEX inbox_conversation_seq ON state.agent_inbox (agent_id, (payload ->> 'conversation_id'), conversation_seq, created_at)
    WHERE payload ->> 'conversation_id' IS NOT NULL;
