-- Profiles by name, each with the box that holds its newest version.
CREATE TABLE resource.profiles (
    project_id             text NOT NULL,
    profile_box_id         text NOT NULL,
    name                   text NOT NULL,
    worker_target          text NOT NULL DEFAULT 'worker_generic',
    tags                   jsonb NOT NULL DEFAULT '[]',
    system_prompt_compiled text,
    updated_at             timestamptz NOT NULL DEFAULT now(),
    -- what an enqueue must know of a profile: its memory, whether it has instances, and the box that they were read
    -- from
    settings               jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (project_id, profile_box_id)
);

CREATE UNIQUE INDEX profiles_name ON resource.profiles (lower(name), project_id);
-- Named by v1r4's `ON CONFLICT (project_id, name)`.
CREATE UNIQUE INDEX profiles_project_name ON resource.profiles (project_id, name);
