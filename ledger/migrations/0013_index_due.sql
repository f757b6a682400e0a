-- What is due, of all agents and of a project, and who of a project is busy: for the statements that ask for these indexes by
-- the words of their predicates, and for no others. By the statistics of a ledger with a long past all indexes of live rows are
-- empty, and claims took these, past every live row.
DROP INDEX state.inbox_due;
CREATE INDEX inbox_due ON state.agent_inbox (next_retry_at) WHERE archived_at IS NULL AND inbox_id >= '';
DROP INDEX state.inbox_project_live;
CREATE INDEX inbox_project_live ON state.agent_inbox (project_id COLLATE "C", next_retry_at)
    WHERE archived_at IS NULL AND inbox_id >= '';
DROP INDEX state.head_project_busy;
CREATE INDEX head_project_busy ON state.agent_state_head (project_id COLLATE "C") WHERE output_box_id IS NOT NULL AND agent_id >= '';
