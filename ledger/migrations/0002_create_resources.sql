-- Who is there: profiles, the roster and the tools (protocol §4).

CREATE TABLE resource.profiles (
    project_id             text NOT NULL,
    profile_box_id         text NOT NULL,
    name                   text NOT NULL,
    worker_target          text NOT NULL DEFAULT 'worker_generic',
    tags                   jsonb NOT NULL DEFAULT '[]',
    system_prompt_compiled text,
    updated_at             timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, profile_box_id)
);
CREATE UNIQUE INDEX profiles_name ON resource.profiles (lower(name), project_id);

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
    PRIMARY KEY (agent_id, project_id)
);
-- For lists. Its collation keeps it from the statements that name an agent, which would use it by its project.
CREATE INDEX project_agents_project ON resource.project_agents (project_id COLLATE "C");
CREATE INDEX project_agents_profile ON resource.project_agents (profile_box_id);

CREATE TABLE resource.tools (
    project_id      text NOT NULL,
    tool_name       text NOT NULL,
    description     text,
    parameters      jsonb NOT NULL DEFAULT '{}',
    target_subject  text,
    after_execution text,
    options         jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (project_id, tool_name)
);
