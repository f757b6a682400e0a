-- The files of tables, views, functions and migrations that this database has, as `turnstile migrate` applied them.
CREATE TABLE state.schema_files (
    name       text PRIMARY KEY,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON COLUMN state.schema_files.name IS 'the folder and the name without its suffix: functions/as_uuid';
