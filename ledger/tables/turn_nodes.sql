-- A node per turn that is in a tree, made by the kernel only: a child's by its enqueue, a root's by its first child. A
-- mark is its stopping_at: no step begins, no command leaves and no child is enqueued below it. Marks are here and not
-- on heads, whose locks the ends of siblings hold. What an update changes is in no index of live rows but the mark's.
CREATE TABLE state.turn_nodes (
    agent_turn_id  text PRIMARY KEY,
    project_id     text NOT NULL,
    parent_turn_id text,
    root_turn_id   text NOT NULL,
    waited         boolean NOT NULL DEFAULT false,
    stopping_at    timestamptz,
    stop_reason    text,
    stopped_by     text,
    ended          boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70);

CREATE INDEX nodes_parent ON state.turn_nodes (parent_turn_id) WHERE parent_turn_id IS NOT NULL;
CREATE INDEX nodes_root ON state.turn_nodes (root_turn_id);
CREATE INDEX nodes_stopped_by ON state.turn_nodes (stopped_by) WHERE stopped_by IS NOT NULL;
CREATE INDEX nodes_stopping ON state.turn_nodes (stopping_at) WHERE stopping_at IS NOT NULL AND NOT ended;

COMMENT ON COLUMN state.turn_nodes.waited IS 'its parent waits for it: a stop of the parent reaches it';
COMMENT ON COLUMN state.turn_nodes.stopped_by IS 'who set the mark: a turn that ended, stop, deadline';
