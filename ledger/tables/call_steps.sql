-- What a program has done under a call that it runs, once for each key (protocol §21): the first value that is recorded
-- counts for every run of the call. Rows never change, and go with their turn.
CREATE TABLE state.call_steps (
    project_id    text NOT NULL,
    agent_id      text NOT NULL,
    agent_turn_id text NOT NULL,
    step_id       text NOT NULL,
    channel_id    text NOT NULL,
    tool_call_id  text NOT NULL,
    key           text NOT NULL,
    seq           integer NOT NULL CHECK (seq BETWEEN 1 AND 1000),
    value         jsonb NOT NULL,
    bytes         integer NOT NULL CHECK (bytes BETWEEN 1 AND 524288),
    model         text,
    tokens        bigint CHECK (tokens >= 0),
    written       bigint CHECK (written BETWEEN 0 AND tokens),
    cost          bigint CHECK (cost >= 0),
    attempt       integer,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tool_call_id, project_id, key),
    CONSTRAINT use_is_whole CHECK ((tokens IS NULL) = (cost IS NULL) AND (tokens IS NULL) = (model IS NULL)
                             AND (tokens IS NULL) = (written IS NULL)),
    CONSTRAINT booked_is_used CHECK (attempt IS NULL OR tokens IS NOT NULL)
);

CREATE INDEX call_steps_turn ON state.call_steps (agent_turn_id, created_at);

COMMENT ON COLUMN state.call_steps.seq IS 'its place among the steps of the call, from 1';
COMMENT ON COLUMN state.call_steps.bytes IS 'of the value, as it was sent';
COMMENT ON COLUMN state.call_steps.step_id IS 'the step of the turn that made the call';
COMMENT ON COLUMN state.call_steps.tokens IS 'all that a model read and wrote';
COMMENT ON COLUMN state.call_steps.cost IS 'in micro-dollars';
COMMENT ON COLUMN state.call_steps.attempt IS
    'of the budget reservation by which its use was booked; null where nothing limits the turn';
