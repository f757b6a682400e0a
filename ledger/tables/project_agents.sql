-- The roster: the agents of a project, instances of profiles among them.
CREATE TABLE resource.project_agents (
    project_id     text NOT NULL,
    agent_id       text NOT NULL,
    profile_box_id uuid NOT NULL,
    worker_target  text NOT NULL DEFAULT 'worker_generic',
    tags           jsonb NOT NULL DEFAULT '[]',
    display_name   text,
    owner_agent_id text,
    status         text NOT NULL DEFAULT 'active',
    metadata       jsonb NOT NULL DEFAULT '{}',
    created_at     timestamptz NOT NULL DEFAULT now(),
    last_seen_at   timestamptz,
    made_by        text,
    PRIMARY KEY (agent_id, project_id)
);

-- For lists. Its collation keeps it from the statements that name an agent, which would use it by its project.
CREATE INDEX project_agents_project ON resource.project_agents (project_id COLLATE "C");
CREATE INDEX project_agents_profile ON resource.project_agents (profile_box_id);
-- The instances of profiles: to count those of a project, and to find unused ones.
CREATE INDEX project_agents_instances ON resource.project_agents (project_id COLLATE "C", status)
    WHERE metadata ? 'instance_of';
-- Agents that a call made for its child are instances of the child's profile, and go with their only turn; but
-- [limits].max_instances counts only those that requests have made.
CREATE INDEX project_agents_asked ON resource.project_agents (project_id COLLATE "C", status)
    WHERE metadata ? 'instance_of' AND NOT metadata ? 'spawned_by';
-- Those of a caller: see is_full.
CREATE INDEX project_agents_made ON resource.project_agents (project_id COLLATE "C", made_by)
    WHERE made_by IS NOT NULL;

COMMENT ON COLUMN resource.project_agents.made_by IS
    'the caller who put it on the roster; null: a request or a call made it, or a program with the database';
