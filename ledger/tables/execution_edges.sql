-- Who caused what: a row for each request, and each response, between turns, tools and agents.
CREATE TABLE state.execution_edges (
    edge_id              text PRIMARY KEY,
    project_id           text NOT NULL,
    channel_id           text,
    primitive            text NOT NULL CHECK (primitive IN ('enqueue', 'report', 'join', 'tool_call')),
    edge_phase           text NOT NULL CHECK (edge_phase IN ('request', 'response')),
    source_agent_id      text,
    source_agent_turn_id text,
    source_step_id       text,
    target_agent_id      text,
    target_agent_turn_id text,
    correlation_id       text,
    enqueue_mode         text,
    recursion_depth      integer,
    trace_id             text,
    parent_step_id       text,
    metadata             jsonb NOT NULL DEFAULT '{}',
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX edges_trace ON state.execution_edges (trace_id);
CREATE UNIQUE INDEX edges_correlation ON state.execution_edges (md5(correlation_id), project_id, primitive, edge_phase);
