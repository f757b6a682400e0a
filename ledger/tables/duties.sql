-- A duty that one bridge at a time does, at most every so often: comparing ledger and engine costs calls.
CREATE TABLE state.duties (
    duty     text PRIMARY KEY,
    taken_at timestamptz NOT NULL DEFAULT now()
);
