-- What is live in a project: to take projects in turn, and to count against limits. Their collation keeps these indexes from
-- the other statements, which would use them by the project, the least selective column there is.
CREATE INDEX inbox_project_live ON state.agent_inbox (project_id COLLATE "C", next_retry_at) WHERE archived_at IS NULL;
CREATE INDEX head_project_busy ON state.agent_state_head (project_id COLLATE "C") WHERE output_box_id IS NOT NULL;
CREATE INDEX threads_project_open ON state.threads (project_id COLLATE "C") WHERE status = 'open';
