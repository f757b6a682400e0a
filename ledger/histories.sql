-- Histories of the ledger (protocol §16).

-- name: enter_era :opt
-- Begins an era if the server's history is a new one; returns the history. No row: the server is a standby.
SELECT e.epoch_floor, e.timeline_id FROM state.enter_era() e;

-- name: find_history :one
-- The server's history as far as a session that only reads can know; on a standby the timeline is unknown.
SELECT (SELECT e.epoch_floor FROM state.ledger_era e WHERE e.is_only) AS epoch_floor,
       CASE WHEN NOT pg_is_in_recovery()
                 THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END AS timeline_id;

-- name: find_era :opt
-- The ledger's era.
SELECT e.ledger_id::text AS ledger_id, e.era, e.epoch_floor, e.carried_count, e.begun_at
FROM state.ledger_era e WHERE e.is_only;

-- name: find_uncompared :opt
-- The era, if what NATS holds of the one before was not compared with the ledger yet.
SELECT e.era, e.begun_at FROM state.ledger_era e WHERE e.is_only AND e.compared_era < e.era;

-- name: record_compared :exec
-- What NATS holds of the era before has been compared.
UPDATE state.ledger_era e SET compared_era = :era::bigint WHERE e.is_only AND e.compared_era < :era::bigint;

-- name: record_beyond :many
-- Records, once, which of these ends, published in an earlier era, the ledger does not have.
INSERT INTO state.rejections (project_id, source, error_code, error, ids)
SELECT t.project_id, 'era', 'beyond_ledger',
       CASE WHEN i.agent_turn_id IS NULL THEN 'the end of a turn was published that the ledger has lost'
            ELSE 'an end of this turn was published that the ledger has lost' END, t.ids
FROM (SELECT u.*, jsonb_build_object('agent_turn_id', u.agent_turn_id, 'turn_epoch', u.turn_epoch, 'status', u.status,
                                     'deliverable_card_id', u.deliverable_card_id) AS ids
      FROM unnest(:project_ids::text[], :agent_turn_ids::text[], :turn_epochs::bigint[], :statuses::text[],
                  :deliverable_card_ids::text[])
           u (project_id, agent_turn_id, turn_epoch, status, deliverable_card_id)) t
JOIN state.ledger_era e ON e.is_only AND t.turn_epoch < e.epoch_floor
LEFT JOIN LATERAL (
    SELECT x.agent_turn_id FROM state.agent_inbox x
    WHERE x.agent_turn_id = t.agent_turn_id AND x.message_type IN {turn_types} LIMIT 1) i ON true
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = t.agent_turn_id
WHERE (o.agent_turn_id IS NULL OR o.turn_epoch <> t.turn_epoch) AND NOT EXISTS (
    SELECT FROM state.rejections r WHERE r.project_id COLLATE "C" = t.project_id
      AND r.error_code = 'beyond_ledger' AND r.ids = t.ids)
RETURNING ids ->> 'agent_turn_id' AS agent_turn_id, error;
