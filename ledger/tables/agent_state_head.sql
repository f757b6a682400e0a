-- One row per agent: the only place where its current turn is decided.
-- queue_seq rises with every enqueue, so that a finish that waited for one sees that its picture of the queue is old.
-- output_position is the last position that its turn knows to be used in output_box_id (0 until it begins); step_count
-- the steps committed in this turn; step_attempt the streams started for the current step; model_failures the failed
-- model calls among them.
CREATE TABLE state.agent_state_head (
    project_id               text NOT NULL,
    agent_id                 text NOT NULL,
    status                   text NOT NULL DEFAULT 'idle'
                             CHECK (status = ANY ('{idle,dispatched,running,suspended}')),
    active_agent_turn_id     text,
    active_inbox_id          text,
    active_channel_id        text,
    turn_epoch               bigint NOT NULL DEFAULT 0,
    active_recursion_depth   integer NOT NULL DEFAULT 0,
    updated_at               timestamptz NOT NULL DEFAULT now(),
    parent_step_id           text,
    trace_id                 text,
    profile_box_id           uuid,
    context_box_id           uuid,
    output_box_id            uuid,
    expecting_correlation_id text,
    waiting_tool_count       integer NOT NULL DEFAULT 0 CHECK (waiting_tool_count >= 0),
    resume_deadline          timestamptz,
    restart_count            integer NOT NULL DEFAULT 0,
    queue_seq                bigint NOT NULL DEFAULT 0,
    output_position          bigint NOT NULL DEFAULT 0,
    step_count               integer NOT NULL DEFAULT 0,
    step_attempt             integer NOT NULL DEFAULT 0,
    model_failures           integer NOT NULL DEFAULT 0,
    started_at               timestamptz,
    -- The epoch at which the agent was paused, null while it is not paused. It is on the head because every lease
    -- locks the head: a lease that waited for a pause sees it. No lease is taken while it is set, so a busy head's
    -- epoch is at most this one.
    paused_at_epoch          bigint,
    -- A turn in hand as an era begins keeps its place and gets the floor as its epoch; its workflow is of the era
    -- before until it is started anew.
    is_carried               boolean NOT NULL DEFAULT false,
    PRIMARY KEY (agent_id, project_id),
    CONSTRAINT idle_holds_nothing CHECK (
        CASE WHEN status = 'idle'
             THEN active_agent_turn_id IS NULL AND context_box_id IS NULL AND output_box_id IS NULL
             -- a v1r4 UI worker leases first and looks for boxes after; a turn of ours has its boxes from the lease on
             ELSE active_agent_turn_id IS NOT NULL
                  AND (active_inbox_id IS NULL OR (context_box_id IS NOT NULL AND output_box_id IS NOT NULL))
        END)
) WITH (fillfactor = 50);

-- Invariant 1, and the list of busy heads.
CREATE UNIQUE INDEX head_output_box ON state.agent_state_head (output_box_id) WHERE output_box_id IS NOT NULL;
CREATE INDEX head_project_busy ON state.agent_state_head (project_id COLLATE "C")
    WHERE output_box_id IS NOT NULL AND agent_id >= '';
CREATE INDEX heads_carried ON state.agent_state_head (agent_id) WHERE is_carried;
