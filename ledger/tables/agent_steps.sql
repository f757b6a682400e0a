-- The steps of turns: a row fences its step, and says what it asked and used.
CREATE TABLE state.agent_steps (
    project_id     text NOT NULL,
    agent_id       text NOT NULL,
    step_id        text NOT NULL,
    agent_turn_id  text NOT NULL,
    channel_id     text,
    parent_step_id text,
    trace_id       text,
    status         text NOT NULL
                   CHECK (status IN ('running', 'tool_dispatched', 'completed', 'failed', 'canceled')),
    profile_box_id uuid,
    context_box_id uuid,
    output_box_id  uuid,
    request_box_id uuid,
    api_log_id     bigint,
    tool_call_ids  jsonb,
    error          text,
    metadata       jsonb NOT NULL DEFAULT '{}',
    started_at     timestamptz NOT NULL DEFAULT now(),
    ended_at       timestamptz,
    PRIMARY KEY (step_id, project_id, agent_id)  -- v1r4 inserts steps by all three; step_id alone fences
);

CREATE INDEX steps_turn ON state.agent_steps (agent_turn_id);
-- The boxes that steps made, for retention and for whoever asks whose a box is. Few steps compact.
CREATE INDEX steps_compaction ON state.agent_steps ((metadata #>> '{compaction,output_box_id}'))
    WHERE metadata ? 'compaction';
