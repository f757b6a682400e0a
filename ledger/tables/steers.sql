-- Steers (protocol §6, steer): what somebody says to a turn while it runs. Its text is a card from the begin, in no box
-- until the step that asks the model with it is committed. A step begins with all that are due, once: a repeated
-- attempt of it asks with the same.
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
COMMENT ON COLUMN state.steers.seq IS
    'the order in which they were accepted: drawn behind the lock of the turn''s head, or of its queued row';
COMMENT ON COLUMN state.steers.status IS
    'waiting; taken: a step asks the model with it; applied: that step is committed; skipped: the turn ended first';
COMMENT ON COLUMN state.steers.due IS
    'whether the next step takes it: one for when the turn is idle becomes due where the turn would have ended';
COMMENT ON COLUMN state.steers.step_id IS 'the step that took it';
COMMENT ON COLUMN state.steers.steered_by IS 'the principal';
