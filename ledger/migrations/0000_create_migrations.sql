-- The table of applied migrations; it records itself first.
CREATE SCHEMA IF NOT EXISTS state;
CREATE TABLE state.migrations (
    name       text PRIMARY KEY,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
