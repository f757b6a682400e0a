-- A witness of decisions, in a schema of its own: what the ledger itself does not keep, how often each batch was decided.

-- name: make_schema :exec
-- The witness's schema.
CREATE SCHEMA chaos;

-- name: make_table :exec
-- One row for each decision of a batch.
CREATE TABLE chaos.decisions (batch_id text NOT NULL, status text NOT NULL, decided_at timestamptz NOT NULL DEFAULT clock_timestamp());

-- name: make_function :exec
-- Adds the row, in the transaction of the decision.
CREATE FUNCTION chaos.note_decision() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO chaos.decisions (batch_id, status) VALUES (NEW.batch_id, NEW.status);
    RETURN NULL;
END $$;

-- name: make_trigger :exec
-- A batch is decided when its status or its moment changes.
CREATE TRIGGER chaos_decisions AFTER UPDATE ON state.pmo_batches FOR EACH ROW
WHEN (OLD.status <> NEW.status OR OLD.decided_at IS DISTINCT FROM NEW.decided_at OR OLD.decided_by IS DISTINCT FROM NEW.decided_by)
EXECUTE FUNCTION chaos.note_decision();
