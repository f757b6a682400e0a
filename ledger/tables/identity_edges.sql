-- Which agent was made or changed by whom.
CREATE TABLE state.identity_edges (
    edge_id         text PRIMARY KEY,
    project_id      text NOT NULL,
    channel_id      text,
    action          text NOT NULL,
    source_agent_id text,
    target_agent_id text NOT NULL,
    trace_id        text,
    parent_step_id  text,
    metadata        jsonb NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT now()
);
