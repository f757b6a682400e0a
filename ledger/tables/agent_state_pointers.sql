-- What any turn of an agent, or box_replace, set last, as v1r4 has it; what counts for a channel is in
-- channel_pointers.
CREATE TABLE state.agent_state_pointers (
    project_id             text NOT NULL,
    agent_id               text NOT NULL,
    memory_context_box_id  uuid,
    last_output_box_id     uuid,
    updated_at             timestamptz NOT NULL DEFAULT now(),
    -- The last output box as box_replace has set it, for as long as last_output_box_id is the same. A column of its
    -- own, since no turn writes it: with last_output_box_id in an index, every end of a turn would write there, too.
    replaced_output_box_id uuid,
    PRIMARY KEY (agent_id, project_id)
) WITH (fillfactor = 70);

CREATE INDEX pointers_memory ON state.agent_state_pointers (memory_context_box_id)
    WHERE memory_context_box_id IS NOT NULL;
CREATE INDEX pointers_replaced ON state.agent_state_pointers (replaced_output_box_id)
    WHERE replaced_output_box_id IS NOT NULL;
