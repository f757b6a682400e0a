-- Histories of the ledger (protocol §16).

-- name: enter_era :opt
-- Begins an era if the server's history is a new one; returns the era. No row: the server is a standby.
SELECT e.ledger_id, e.era, e.epoch_floor, e.timeline_id, e.carried_count, e.begun_at FROM state.enter_era() e;

-- name: find_history :one
-- The server's history as far as a session that only reads can tell; on a standby the timeline is unknown.
SELECT (SELECT e.epoch_floor FROM state.ledger_era e WHERE e.is_only) AS epoch_floor,
       CASE WHEN NOT pg_is_in_recovery() THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END AS timeline_id;

-- name: find_era :opt
-- The ledger's era.
SELECT e.ledger_id, e.era, e.epoch_floor, e.timeline_id, e.carried_count, e.begun_at FROM state.ledger_era e WHERE e.is_only;
