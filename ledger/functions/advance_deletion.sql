-- Does the next bounded piece of a running deletion; it can stop after any and go on. It notes what there is, names the
-- turns that must end first, removes schedules of the conversation, threads, turns with all their rows, conversations,
-- boxes with their cards, agents that were made for them, and files that no other card names, and at last forgets whom
-- it was about. One at a time, and never beside retention: two removals could each leave a card for the other.
-- phase: over (there is no such deletion, or it is done) | waits (something else removes, or an end is not announced
-- yet) | stops (`live` must end first) | removes (call it again) | done. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.advance_deletion(deletion text, most integer, OUT phase text, OUT live text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    d state.deletions;
    picked text[];
    gone text[];
    left_over text[];
    cards text[];
    agents text[];
    counted record;
    n bigint;
BEGIN
    live := '{}';
    SELECT x.* INTO d FROM state.deletions x WHERE x.deletion_id = deletion FOR UPDATE SKIP LOCKED;
    IF d.status IS DISTINCT FROM 'running' THEN
        phase := CASE WHEN d.status IS NULL AND EXISTS (
            SELECT FROM state.deletions x WHERE x.deletion_id = deletion) THEN 'waits' ELSE 'over' END;
        RETURN;
    END IF;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('turnstile.retention', 0)) THEN
        phase := 'waits';
        RETURN;
    END IF;
    PERFORM set_config('turnstile.retention', 'on', true), set_config('enable_hashjoin', 'off', true),
            set_config('enable_mergejoin', 'off', true);
    UPDATE state.deletions x SET advanced_at = now() WHERE x.deletion_id = deletion;
    DELETE FROM resource.schedules s
    WHERE d.kind = 'conversation' AND s.project_id = d.project_id AND s.channel_id = d.channel_id
      AND s.settings ->> 'conversation_id' = d.conversation_id
      AND coalesce(s.settings ->> 'agent_id', d.agent_id) = d.agent_id;
    PERFORM state.grow_deletion(deletion);

    -- The newest first: the end of a turn in hand would lease the next one of its agent.
    live := ARRAY(
        SELECT i.item_id FROM state.deletion_items i
        WHERE i.deletion_id = deletion AND i.kind = 'turn' AND NOT i.is_gone
          AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = i.item_id OFFSET 0)
          AND EXISTS (SELECT FROM state.agent_inbox b WHERE b.agent_turn_id = i.item_id AND b.project_id = d.project_id
                        AND (b.archived_at IS NULL OR EXISTS (
                            SELECT FROM state.agent_state_head h WHERE h.agent_id = b.agent_id
                              AND h.project_id = b.project_id AND h.active_agent_turn_id = b.agent_turn_id OFFSET 0))
                      OFFSET 0)
        ORDER BY i.item_id DESC LIMIT most);
    IF live <> '{}' THEN
        phase := 'stops';
        RETURN;
    END IF;
    phase := 'removes';

    -- Turns that were given up before they had an outcome: their rows are final, and stand for nothing.
    WITH rows AS (
        DELETE FROM state.agent_inbox b USING state.deletion_items i
        WHERE i.deletion_id = deletion AND i.kind = 'turn' AND NOT i.is_gone AND b.agent_turn_id = i.item_id
          AND b.project_id = d.project_id
          AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = i.item_id OFFSET 0)
        RETURNING b.project_id, b.correlation_id, b.agent_turn_id
    )
    DELETE FROM state.execution_edges e USING rows
    WHERE md5(e.correlation_id) = md5(rows.correlation_id) AND e.project_id = rows.project_id
      AND e.target_agent_turn_id = rows.agent_turn_id;
    UPDATE state.deletion_items i SET is_gone = true
    WHERE i.deletion_id = deletion AND i.kind = 'turn' AND NOT i.is_gone
      AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = i.item_id OFFSET 0);

    picked := ARRAY(
        SELECT i.item_id FROM state.deletion_items i
        WHERE i.deletion_id = deletion AND i.kind = 'turn' AND NOT i.is_gone
          AND EXISTS (SELECT FROM state.removable_turns('infinity') t WHERE t.agent_turn_id = i.item_id OFFSET 0)
        ORDER BY i.item_id LIMIT most);
    IF picked <> '{}' THEN
        PERFORM state.note_deleted_turns(deletion, picked);
        cards := ARRAY(SELECT c.card_id FROM state.turn_cards(picked) c);
        PERFORM state.note_deleted_files(deletion, cards);
        agents := ARRAY(SELECT DISTINCT o.agent_id FROM state.turn_outcomes o WHERE o.agent_turn_id = ANY (picked));
        DELETE FROM state.rejections r USING state.turn_waiting_tools w
        WHERE w.agent_turn_id = ANY (picked) AND r.project_id = w.project_id
          AND r.ids ->> 'tool_call_id' = w.tool_call_id;
        gone := ARRAY(SELECT r.id FROM state.remove_turns(picked) r);
        PERFORM state.move_deleted_pointers(deletion, d.project_id, agents);
        left_over := ARRAY(SELECT x.id FROM unnest(picked) x (id) WHERE x.id <> ALL (gone));
        DELETE FROM public.cards c WHERE c.card_id = ANY (cards)
          AND c.card_id NOT IN (SELECT k.card_id FROM state.turn_cards(left_over) k);
        GET DIAGNOSTICS n = ROW_COUNT;
        UPDATE state.deletion_items i SET is_gone = true
        WHERE i.deletion_id = deletion AND i.kind = 'turn' AND i.item_id = ANY (gone);
        UPDATE state.deletions x SET turns = x.turns + cardinality(gone), cards = x.cards + n
        WHERE x.deletion_id = deletion;
        phase := CASE WHEN gone = '{}' THEN 'waits' ELSE phase END;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM state.deletion_items i
               WHERE i.deletion_id = deletion AND i.kind = 'turn' AND NOT i.is_gone) THEN
        phase := 'waits';
        RETURN;
    END IF;

    picked := ARRAY(SELECT i.item_id FROM state.deletion_items i
                 WHERE i.deletion_id = deletion AND i.kind = 'thread' AND NOT i.is_gone
                 ORDER BY i.item_id LIMIT most);
    IF picked <> '{}' THEN
        PERFORM FROM state.threads t WHERE t.thread_id = ANY (picked) ORDER BY t.thread_id FOR UPDATE;
        IF EXISTS (SELECT FROM state.threads t WHERE t.thread_id = ANY (picked) AND NOT EXISTS (
                SELECT FROM state.prunable_threads('infinity') p WHERE p.thread_id = t.thread_id OFFSET 0)) THEN
            phase := 'waits';
            RETURN;
        END IF;
        INSERT INTO state.deletion_items (deletion_id, project_id, kind, item_id)
        SELECT DISTINCT deletion, d.project_id, 'box', s.output_box_id::text FROM state.thread_segments s
        WHERE s.thread_id = ANY (picked) AND s.output_box_id IS NOT NULL ON CONFLICT DO NOTHING;
        cards := ARRAY(SELECT c.card_id FROM state.thread_cards(picked) c);
        PERFORM state.note_deleted_files(deletion, cards);
        DELETE FROM state.threads t WHERE t.thread_id = ANY (picked);
        DELETE FROM public.cards c WHERE c.card_id = ANY (cards);
        UPDATE state.deletion_items i SET is_gone = true
        WHERE i.deletion_id = deletion AND i.kind = 'thread' AND i.item_id = ANY (picked);
        RETURN;
    END IF;

    IF NOT state.remove_deleted_conversations(deletion) THEN
        phase := 'waits';
        RETURN;
    END IF;
    PERFORM state.spread_deleted_boxes(deletion);
    picked := ARRAY(SELECT DISTINCT i.item_id FROM state.deletion_items i
                 WHERE i.deletion_id = deletion AND i.kind IN ('box', 'context') AND NOT i.is_gone
                 ORDER BY i.item_id LIMIT most);
    IF picked <> '{}' THEN
        gone := ARRAY(SELECT b.box_id::text FROM public.boxes b WHERE b.box_id = ANY (picked::uuid[])
                      ORDER BY b.box_id FOR UPDATE SKIP LOCKED);
        left_over := ARRAY(SELECT b.box_id::text FROM public.boxes b
                           WHERE b.box_id = ANY (picked::uuid[]) AND b.box_id <> ALL (gone::uuid[]));
        PERFORM state.note_deleted_files(deletion, ARRAY(SELECT DISTINCT p.card_id FROM public.box_cards p
            JOIN state.artifact_refs r ON r.card_id = p.card_id WHERE p.box_id = ANY (gone::uuid[])));
        SELECT r.boxes, r.cards INTO counted FROM state.remove_boxes(ARRAY(
            SELECT u.box_id FROM unnest(gone::uuid[]) g (box_id) CROSS JOIN LATERAL (
                SELECT x.box_id FROM state.unused_boxes('infinity', false) x WHERE x.box_id = g.box_id OFFSET 0) u)) r;
        UPDATE state.deletion_items i SET is_gone = true
        WHERE i.deletion_id = deletion AND i.kind IN ('box', 'context') AND i.item_id = ANY (picked)
          AND i.item_id <> ALL (left_over);
        UPDATE state.deletions x SET boxes = x.boxes + counted.boxes, cards = x.cards + counted.cards
        WHERE x.deletion_id = deletion;
        phase := CASE WHEN cardinality(left_over) = cardinality(picked) THEN 'waits' ELSE phase END;
        RETURN;
    END IF;
    PERFORM state.forget_deleted_agents(deletion);
    n := state.empty_deleted_cards(deletion);
    PERFORM state.remove_deleted_files(deletion);
    DELETE FROM state.deletion_items i WHERE i.deletion_id = deletion;
    UPDATE state.deletions x SET status = 'done', ended_at = clock_timestamp(), emptied = n, channel_id = NULL,
        agent_id = NULL, conversation_id = NULL, end_user = NULL
    WHERE x.deletion_id = deletion;
    phase := 'done';
END $$;
