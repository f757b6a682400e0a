-- What was refused, from whom, why; never a secret or a body.
CREATE TABLE state.rejections (
    rejection_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id   text,
    source       text NOT NULL,
    error_code   text NOT NULL,
    error        text NOT NULL,
    ids          jsonb NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT now()
);

-- A project's refusals, for people.
CREATE INDEX rejections_project ON state.rejections (project_id COLLATE "C", rejection_id);
