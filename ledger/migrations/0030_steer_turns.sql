-- Steers (protocol §6, steer): what somebody says to a turn while it runs. Its text is a card from the begin, in no box until the step that
-- asks the model with it is committed. Not rows of the inbox: a steer wakes nobody, and bridges of the version before would refuse them.
--
-- A step begins with all that are due, once: a repeated attempt of it asks with the same. Workers of the version before take none and
-- end turns regardless; then the trigger below skips what waits, as it does at every end.
CREATE TABLE state.steers (
    steer_id       text PRIMARY KEY,
    seq            bigint GENERATED ALWAYS AS IDENTITY,
    project_id     text NOT NULL,
    agent_id       text NOT NULL,
    agent_turn_id  text NOT NULL,
    correlation_id text NOT NULL,
    priority       text NOT NULL CHECK (priority IN ('asap', 'when_idle')),
    status         text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'taken', 'applied', 'skipped')),
    due            boolean NOT NULL,
    step_id        text,
    steered_by     text NOT NULL,
    request_digest text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at     timestamptz,
    UNIQUE (agent_turn_id, correlation_id),
    CONSTRAINT steer_has_its_step CHECK ((status IN ('taken', 'applied')) <= (step_id IS NOT NULL)),
    CONSTRAINT steer_is_settled CHECK ((status IN ('applied', 'skipped')) = (settled_at IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX steers_open ON state.steers (agent_turn_id, seq) WHERE status IN ('waiting', 'taken');
COMMENT ON TABLE state.steers IS 'what somebody says to a turn while it runs; the card of the same id has the text';
COMMENT ON COLUMN state.steers.seq IS 'the order in which they were accepted: drawn behind the lock of the turn''s head, or of its queued row';
COMMENT ON COLUMN state.steers.status IS 'waiting; taken: a step asks the model with it; applied: that step is committed; skipped: the turn ended first';
COMMENT ON COLUMN state.steers.due IS 'whether the next step takes it: one for when the turn is idle becomes due where the turn would have ended';
COMMENT ON COLUMN state.steers.step_id IS 'the step that took it';
COMMENT ON COLUMN state.steers.steered_by IS 'the principal';

-- The steers that a step asks the model with, in order: those that its first attempt takes, or an earlier attempt of it took. The
-- caller holds the head, and a function sees what was committed before it had that.
CREATE FUNCTION state.take_steers(turn text, step text, first boolean)
RETURNS TABLE (seq bigint, card_id text, content jsonb, metadata jsonb, expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF first THEN
        UPDATE state.steers s SET status = 'taken', step_id = step WHERE s.agent_turn_id = turn AND s.status = 'waiting' AND s.due;
    END IF;
    RETURN QUERY SELECT s.seq, c.card_id, c.content, c.metadata, c.expires_at FROM state.steers s
        JOIN public.cards c ON c.card_id = s.steer_id AND c.tenant_id = s.project_id AND state.is_alive(c.expires_at, c.deleted_at)
        WHERE s.agent_turn_id = turn AND s.status = 'taken' AND s.step_id = step ORDER BY s.seq;
END $$;

-- What no step has asked with by the end of its turn is skipped, whichever statement ends the turn.
CREATE FUNCTION state.skip_steers() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE state.steers s SET status = 'skipped', settled_at = clock_timestamp()
    WHERE s.agent_turn_id = NEW.agent_turn_id AND s.status IN ('waiting', 'taken');
    RETURN NULL;
END $$;
CREATE TRIGGER outcomes_skip_steers AFTER INSERT ON state.turn_outcomes FOR EACH ROW EXECUTE FUNCTION state.skip_steers();
