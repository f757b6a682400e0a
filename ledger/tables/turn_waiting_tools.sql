-- The calls of suspended turns: what each waits for, and what became of it.
CREATE TABLE state.turn_waiting_tools (
    project_id          text NOT NULL,
    agent_id            text NOT NULL,
    agent_turn_id       text NOT NULL,
    turn_epoch          bigint NOT NULL,
    step_id             text NOT NULL,
    tool_call_id        text NOT NULL,
    tool_name           text NOT NULL,
    wait_status         text NOT NULL DEFAULT 'waiting'
                        CHECK (wait_status IN ('waiting', 'received', 'applied', 'expired', 'dropped')),
    tool_result_card_id text,
    received_at         timestamptz,
    applied_at          timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    call_card_id        text,
    deadline            timestamptz,
    held_by             text,
    -- Null: nobody has begun, or a person is asked. begun_at stays: that of the last run.
    begun_at            timestamptz,
    begun_by            text,
    doubted_at          timestamptz,
    left_seconds        float8,
    PRIMARY KEY (tool_call_id, project_id)
) WITH (fillfactor = 80);

CREATE INDEX waiting_turn ON state.turn_waiting_tools (agent_turn_id);

COMMENT ON COLUMN state.turn_waiting_tools.call_card_id IS 'the tool.call card that counts: an edit makes a second one';
COMMENT ON COLUMN state.turn_waiting_tools.deadline IS 'of this call; the head''s resume_deadline is the earliest';
COMMENT ON COLUMN state.turn_waiting_tools.held_by IS 'what must happen before its command is sent, or instead of it';
COMMENT ON COLUMN state.turn_waiting_tools.begun_by IS
    'the run of a replica that said that it begins; only of tools whose calls must not be repeated';
COMMENT ON COLUMN state.turn_waiting_tools.doubted_at IS
    'when the call was given to another replica, which did not run it';
COMMENT ON COLUMN state.turn_waiting_tools.left_seconds IS
    'what was left of its time as its tool asked a person; null unless such a question is open';
