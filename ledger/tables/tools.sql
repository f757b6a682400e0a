-- The tools of a project: what models are offered, and where their commands go.
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
