-- Marks these turns, all of one depth, and what their trees wait for, level by level; returns whom it marked. With
-- `whole`, turns that nobody waits for too, also below turns that are over. Each level is locked in the order of ids
-- and read with a snapshot of its own: whoever enqueues holds its parent's node FOR SHARE until it commits, so once a
-- level is locked the next statement sees each child of it, and none can come. `ender` is the turn that ends in this
-- transaction: its node is closed in the same pass. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.mark_subtrees(tops text[], why text, by_whom text, whole boolean, ender text)
RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    level text[] := tops;
    fresh text[];
    marked text[] := '{}';
BEGIN
    WHILE cardinality(level) > 0 LOOP
        WITH held AS MATERIALIZED (
            SELECT n.agent_turn_id, n.stopping_at, n.ended, n.agent_turn_id IS NOT DISTINCT FROM ender AS ends,
                   n.stopping_at IS NULL AND n.agent_turn_id IS DISTINCT FROM ender AS is_told
            FROM state.turn_nodes n WHERE n.agent_turn_id = ANY (level)
            ORDER BY n.agent_turn_id FOR NO KEY UPDATE
        ),
        done AS (
            UPDATE state.turn_nodes n SET stopping_at = coalesce(held.stopping_at, clock_timestamp()),
                   stop_reason = CASE WHEN held.is_told THEN why ELSE n.stop_reason END,
                   stopped_by = CASE WHEN held.is_told THEN by_whom ELSE n.stopped_by END, ended = n.ended OR held.ends
            FROM held
            WHERE n.agent_turn_id = held.agent_turn_id AND (held.ends OR (held.stopping_at IS NULL AND NOT held.ended))
            RETURNING n.agent_turn_id, held.stopping_at AS earlier
        )
        SELECT coalesce(array_agg(agent_turn_id) FILTER (WHERE earlier IS NULL), '{}') INTO fresh FROM done;
        marked := marked || fresh;
        -- of a turn that another cascade has marked, that one took all below it along; only `whole` must look there
        -- again
        level := ARRAY(SELECT c.agent_turn_id FROM state.turn_nodes c
                       WHERE c.parent_turn_id = ANY (CASE WHEN whole THEN level ELSE fresh END)
                         AND (whole OR (c.waited AND NOT c.ended AND NOT state.is_let_finish(c.agent_turn_id))));
    END LOOP;
    marked := array_remove(marked, ender);
    IF cardinality(marked) > 0 THEN
        -- The durable rings for what is in hand, without a lock on any head: whom it misses has a closed gate, and the
        -- safety net ends
        -- what is marked and not over. Their correlation is not the turn's, as a stop's is: a child that ends has
        -- updated that row and
        -- waits for the batch that we hold, and an insert of the same key would wait for it.
        INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode,
                                       correlation_id, agent_turn_id, turn_epoch, context_headers, payload, status,
                                       next_retry_at, created_at)
        SELECT 'cascade-' || i.agent_turn_id, i.project_id, i.agent_id, i.channel_id, 'stop', 'report',
               'cascade-' || i.agent_turn_id, i.agent_turn_id, h.turn_epoch, i.context_headers,
               jsonb_build_object('reason', why), 'pending', now(), clock_timestamp()
        FROM unnest(marked) m (id) CROSS JOIN LATERAL (
            SELECT x.* FROM state.agent_inbox x
            WHERE x.agent_turn_id = m.id AND x.message_type IN ('turn', 'ui_action') LIMIT 1 OFFSET 0) i
        CROSS JOIN LATERAL (
            SELECT x.turn_epoch FROM state.agent_state_head x
            WHERE x.agent_id = i.agent_id AND x.project_id = i.project_id AND x.active_agent_turn_id = m.id OFFSET 0) h
        WHERE m.id IS DISTINCT FROM by_whom  -- a turn that was asked to stop by name has its own row
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN marked;
END $$;
