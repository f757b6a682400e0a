-- Files of a project (protocol §22): their bytes are in the object store, under the address that `storage_uri` has. The
-- columns up to created_at are CommonGround v1r4's, whose rows are ready as they are written.
CREATE TABLE resource.artifacts (
    project_id     text NOT NULL,
    artifact_id    text NOT NULL,
    filename       text,
    mime           text,
    size           bigint NOT NULL DEFAULT 0 CHECK (size >= 0),
    sha256         text,
    storage_uri    text NOT NULL,
    metadata       jsonb NOT NULL DEFAULT '{}',
    created_at     timestamptz NOT NULL DEFAULT now(),
    channel_id     text NOT NULL DEFAULT 'public',
    created_by     text NOT NULL DEFAULT '',
    agent_turn_id  text,
    correlation_id text,
    status         text NOT NULL DEFAULT 'ready' CHECK (status = ANY ('{uploading,ready,removed}')),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, artifact_id)
);

-- One request makes one file, however often it is made.
CREATE UNIQUE INDEX artifacts_correlation ON resource.artifacts (project_id, correlation_id)
    WHERE status = 'ready' AND correlation_id IS NOT NULL;
CREATE INDEX artifacts_listed ON resource.artifacts (project_id COLLATE "C", created_at, artifact_id)
    WHERE status = 'ready';
-- What a project keeps, and what it uploads now.
CREATE INDEX artifacts_sizes ON resource.artifacts (project_id) INCLUDE (size, status);
-- What the safety net removes.
CREATE INDEX artifacts_leaving ON resource.artifacts (updated_at) WHERE status <> 'ready';

COMMENT ON COLUMN resource.artifacts.status IS
    'uploading: its bytes are on their way, and size is what was announced; removed: its bytes are still to be removed';
COMMENT ON COLUMN resource.artifacts.correlation_id IS 'the name that the request had, with its maker''s before it';
