-- Begins an era if the server's history is not the one that the row names, and returns the row; none on a standby. Each
-- session that writes calls it before anything else, so no statement of ours runs in a new history under an epoch of
-- the old one. Where nothing is new it only reads.
CREATE OR REPLACE FUNCTION state.enter_era() RETURNS SETOF state.ledger_era
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known state.ledger_era;
    history bigint[];
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN;
    END IF;
    history := ARRAY[(SELECT c.system_identifier FROM pg_control_system() c),
                     ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
                     (SELECT d.oid::bigint FROM pg_database d WHERE d.datname = current_database())];
    SELECT * INTO known FROM state.ledger_era;
    IF history = ARRAY[known.system_identifier, known.timeline_id, known.database_oid] THEN
        RETURN NEXT known;
        RETURN;
    END IF;
    INSERT INTO state.ledger_era (system_identifier, timeline_id, database_oid)
    VALUES (history[1], history[2], history[3])
        ON CONFLICT DO NOTHING;
    -- of several sessions one begins the era, and the others wait until it has
    SELECT * INTO known FROM state.ledger_era FOR UPDATE;
    IF history = ARRAY[known.system_identifier, known.timeline_id, known.database_oid] THEN
        RETURN NEXT known;
        RETURN;
    END IF;
    -- By the clock, so that two servers that were promoted one after the other from one history begin different eras.
    known.epoch_floor := greatest(known.epoch_floor + (1::bigint << 32),
                                  extract(epoch
                                      FROM clock_timestamp() - timestamptz '2026-01-01 00:00:00+00')::bigint << 20);
    WITH carried AS (
        UPDATE state.agent_state_head h SET turn_epoch = known.epoch_floor, is_carried = true,
            paused_at_epoch = CASE WHEN h.paused_at_epoch IS NOT NULL THEN known.epoch_floor END
        WHERE h.output_box_id IS NOT NULL
        RETURNING h.active_agent_turn_id AS turn
    ),
    rows_of_turns AS (
        UPDATE state.agent_inbox i SET turn_epoch = known.epoch_floor FROM carried
        WHERE i.agent_turn_id = carried.turn AND i.turn_epoch > 0
    ),
    calls AS (
        UPDATE state.turn_waiting_tools w SET turn_epoch = known.epoch_floor FROM carried
        WHERE w.agent_turn_id = carried.turn
    )
    SELECT count(*) INTO known.carried_count FROM carried;
    UPDATE state.ledger_era e SET era = e.era + 1, epoch_floor = known.epoch_floor, system_identifier = history[1],
        timeline_id = history[2],
        database_oid = history[3], carried_count = known.carried_count, begun_at = clock_timestamp()
    RETURNING * INTO known;
    RETURN NEXT known;
END $$;
