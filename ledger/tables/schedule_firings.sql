-- What came of each time of a schedule: a turn, or why there is none (protocol §20). A time is here once, whoever
-- fires.
CREATE TABLE state.schedule_firings (
    firing_id     text NOT NULL,
    project_id    text NOT NULL,
    schedule_id   text NOT NULL,
    nominal_at    timestamptz NOT NULL,
    fired_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    agent_turn_id text,
    code          text,
    error         text,
    triggered_by  text,
    PRIMARY KEY (project_id, schedule_id, nominal_at),
    FOREIGN KEY (project_id, schedule_id) REFERENCES resource.schedules ON DELETE CASCADE,
    CHECK (num_nonnulls(agent_turn_id, code) = 1)
);

CREATE INDEX schedule_firings_turn ON state.schedule_firings (agent_turn_id) WHERE agent_turn_id IS NOT NULL;
-- Those that go with no turn: see list_old_firings.
CREATE INDEX schedule_firings_refused ON state.schedule_firings (firing_id) WHERE agent_turn_id IS NULL;

COMMENT ON TABLE state.schedule_firings IS 'the times of schedules that have come, each with its turn or a code';
COMMENT ON COLUMN state.schedule_firings.code IS
    'what the enqueue was refused with, missed (later than catchup_seconds), or owner_revoked';
COMMENT ON COLUMN state.schedule_firings.triggered_by IS 'who triggered it; null: its time had come';
