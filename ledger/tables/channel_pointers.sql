-- What an agent remembers in a channel (protocol §4.2, §6). A last output box is kept by its turn, a memory by its row.
CREATE TABLE state.channel_pointers (
    project_id            text NOT NULL,
    channel_id            text NOT NULL,
    agent_id              text NOT NULL,
    memory_context_box_id uuid,
    last_output_box_id    uuid,
    updated_at            timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (agent_id, channel_id, project_id)
);

CREATE INDEX channel_pointers_memory ON state.channel_pointers (memory_context_box_id)
    WHERE memory_context_box_id IS NOT NULL;
