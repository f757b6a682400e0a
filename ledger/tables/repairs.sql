-- Rows mended since the database was made, by rule; over all bridges.
CREATE TABLE state.repairs (
    rule       text PRIMARY KEY,
    repaired   bigint NOT NULL DEFAULT 0,
    last_at    timestamptz NOT NULL DEFAULT now()
);
