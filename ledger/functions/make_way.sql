-- What a turn that was enqueued in this transaction finds in its conversation: the turns that its principal has there,
-- in hand or queued, without those that another turn asked for. The enqueue has locked the conversation and then the
-- agent's head, so none comes, goes or moves meanwhile.
-- The first row has the verdict on the whole: accepted | no_conversation | queue_full | turn_in_progress (reject,
-- steer; names the newest; one that is asked to stop is none to steer), with all of which but the first the caller
-- rolls back. The limit of the queue holds for every strategy and counts turns that are queued, not steers that wait.
-- With interrupt and rollback the turn in hand is asked to stop by a row of its inbox, also before it begins, and the
-- new turn takes the first place of its conversation in the queue; a row for each turn that stops follows, with the
-- verdict of request_stop on it: queued | dispatched | accepted. The caller ends those that are queued, then marks the
-- tree of the one in hand: nodes come last.
--
-- A rollback makes a box (protocol §6, enqueue): the cards of the conversation without those of the turn in hand that
-- is taken back, and the conversation's pointer moves there. That turn goes on in its own box until it has stopped, and
-- no later turn reads that box. The turns that are rolled back say so in their rows, and then in their outcomes. Those
-- that are queued have no card in any box. Of the turn in hand the box is read that it was leased with, since a
-- compaction of its own made another, and what others added to the box that it writes now. Turns are looked up by their
-- ids: PostgreSQL read all turns instead, by a partial index of turns.
CREATE OR REPLACE FUNCTION state.make_way(project text, turn text, strategy text, principal text, why text,
    max_queued_turns integer, new_box uuid)
RETURNS TABLE (verdict text, agent_turn_id text, agent_id text, channel_id text, inbox_id text, turn_epoch bigint,
               worker_target text, context_headers jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    mine state.agent_inbox;
    h state.agent_state_head;
    a state.agent_inbox;
    conversation text;
    target text;
    waiting text[];
    stopped text[];
    place record;
    newest text;
    begun_box uuid;
    rolled_back text;
BEGIN
    SELECT i.* INTO mine FROM state.agent_inbox i
    WHERE i.agent_turn_id = turn AND i.project_id = project AND i.message_type = 'turn';
    conversation := mine.payload ->> 'conversation_id';
    IF conversation IS NULL THEN
        RETURN QUERY SELECT 'no_conversation', NULL, NULL, NULL, NULL, NULL::bigint, NULL, NULL::jsonb;
        RETURN;
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x
    WHERE x.agent_id = mine.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    IF h.active_agent_turn_id <> turn THEN
        SELECT i.* INTO a FROM state.agent_inbox i
        WHERE i.inbox_id = h.active_inbox_id AND i.message_type = 'turn' AND i.channel_id = mine.channel_id
          AND i.payload ->> 'conversation_id' = conversation AND i.context_headers ->> 'CG-Sender' = principal
          AND NOT i.context_headers ? 'CG-Parent-Turn-Id';
    END IF;
    waiting := ARRAY(
        SELECT i.agent_turn_id FROM state.agent_inbox i
        WHERE i.agent_id = mine.agent_id AND i.project_id = project AND i.archived_at IS NULL
          AND i.next_retry_at = 'infinity'
          AND i.status = 'queued' AND i.inbox_id <> mine.inbox_id AND i.channel_id = mine.channel_id
          AND i.payload ->> 'conversation_id' = conversation AND i.context_headers ->> 'CG-Sender' = principal
          AND NOT i.context_headers ? 'CG-Parent-Turn-Id'
        ORDER BY i.created_at);
    IF strategy = 'steer' THEN
        waiting := ARRAY(SELECT w.id FROM unnest(waiting) WITH ORDINALITY w (id, place) WHERE NOT state.is_marked(w.id)
            ORDER BY w.place);
        IF state.is_marked(a.agent_turn_id) OR EXISTS (
                SELECT FROM state.agent_inbox s
                WHERE s.correlation_id = a.agent_turn_id AND s.project_id = project AND s.message_type = 'stop') THEN
            a := NULL;
        END IF;
    END IF;
    newest := coalesce(waiting[cardinality(waiting)], a.agent_turn_id);
    stopped := array_remove(waiting || a.agent_turn_id, NULL);
    IF strategy IN ('reject', 'steer') AND newest IS NOT NULL THEN
        RETURN QUERY SELECT 'turn_in_progress', newest, mine.agent_id, mine.channel_id, NULL, NULL::bigint, NULL,
            NULL::jsonb;
        RETURN;
    END IF;
    IF max_queued_turns > 0 AND mine.status = 'queued' AND max_queued_turns + cardinality(waiting) < (
            SELECT count(*) FROM state.agent_inbox i
            WHERE i.agent_id = mine.agent_id AND i.project_id = project AND i.archived_at IS NULL
              AND i.next_retry_at = 'infinity'
              AND i.status = 'queued') THEN
        RETURN QUERY SELECT 'queue_full', NULL, NULL, NULL, NULL, NULL::bigint, NULL, NULL::jsonb;
        RETURN;
    END IF;
    IF strategy IN ('reject', 'steer') THEN
        RETURN QUERY SELECT 'accepted', NULL, mine.agent_id, mine.channel_id, NULL, NULL::bigint, NULL, NULL::jsonb;
        RETURN;
    END IF;
    SELECT r.worker_target INTO target FROM resource.project_agents r
    WHERE r.agent_id = mine.agent_id AND r.project_id = project;
    SELECT i.agent_turn_id AS turn_id, i.created_at - interval '1 microsecond' AS moment INTO place
    FROM state.agent_inbox i
    WHERE i.agent_id = mine.agent_id AND i.project_id = project AND i.archived_at IS NULL
      AND i.next_retry_at = 'infinity'
      AND i.status = 'queued' AND i.inbox_id <> mine.inbox_id AND i.agent_turn_id <> ALL (waiting)
      AND i.channel_id = mine.channel_id
      AND i.payload ->> 'conversation_id' = conversation AND mine.status = 'queued' AND i.created_at < mine.created_at
    ORDER BY i.created_at LIMIT 1;
    UPDATE state.agent_inbox i SET created_at = coalesce(place.moment, i.created_at),
        payload = i.payload || jsonb_build_object(
        'multitask', jsonb_strip_nulls(jsonb_build_object('strategy', strategy, 'ahead_of', place.turn_id,
                                                          'stopped', to_jsonb(stopped))))
    WHERE i.inbox_id = mine.inbox_id;
    IF strategy = 'rollback' THEN
        FOREACH rolled_back IN ARRAY stopped LOOP  -- one by one, so that each row is looked up by its key
            UPDATE state.agent_inbox i SET payload = i.payload || jsonb_build_object('rolled_back_by', turn)
            WHERE i.agent_turn_id = rolled_back AND i.project_id = project AND i.message_type = 'turn'
              AND NOT i.payload ? 'rolled_back_by';
        END LOOP;
        UPDATE state.conversations c SET output_box_id = new_box, updated_at = now()
        WHERE c.agent_id = mine.agent_id AND c.conversation_id = conversation AND c.channel_id = mine.channel_id
          AND c.project_id = project
          AND a.agent_turn_id IS NOT NULL AND c.output_box_id = h.output_box_id;
        IF FOUND THEN  -- else the turn in hand was rolled back before, and writes where the conversation has ended
            begun_box := state.as_uuid(a.payload ->> 'output_box_id');
            INSERT INTO public.boxes (box_id, tenant_id, parent_ids) VALUES (new_box, project, ARRAY[h.output_box_id]);
            INSERT INTO public.box_cards (box_id, position, card_id)
            SELECT new_box, row_number() OVER (ORDER BY x.part, x.position), x.card_id FROM (
                SELECT 1 AS part, b.position, b.card_id FROM public.box_cards b WHERE b.box_id = begun_box
                UNION ALL
                SELECT 2, b.position, b.card_id FROM public.box_cards b
                WHERE b.box_id = h.output_box_id AND h.output_box_id <> begun_box AND NOT EXISTS (
                    SELECT FROM public.box_cards o WHERE o.box_id = begun_box AND o.card_id = b.card_id)) x
            JOIN public.cards k ON k.card_id = x.card_id
            WHERE k.metadata ->> 'agent_turn_id' IS DISTINCT FROM a.agent_turn_id;
            UPDATE state.agent_inbox i SET payload = jsonb_set(i.payload, '{multitask,output_box_id}',
                to_jsonb(new_box))
            WHERE i.inbox_id = mine.inbox_id;
            UPDATE state.agent_state_pointers p SET last_output_box_id = new_box, updated_at = now()
            WHERE p.agent_id = mine.agent_id AND p.project_id = project AND p.last_output_box_id = h.output_box_id;
            UPDATE state.channel_pointers p SET last_output_box_id = new_box, updated_at = now()
            WHERE p.agent_id = mine.agent_id AND p.project_id = project AND p.last_output_box_id = h.output_box_id;
        END IF;
    END IF;
    IF a.agent_turn_id IS NOT NULL THEN
        INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode,
                                       correlation_id, agent_turn_id, turn_epoch, context_headers, payload, status,
                                       next_retry_at, created_at)
        VALUES ('stop-' || a.agent_turn_id, project, a.agent_id, a.channel_id, 'stop', 'report', a.agent_turn_id,
                a.agent_turn_id, h.turn_epoch, a.context_headers, jsonb_build_object('reason', why), 'pending', now(),
                clock_timestamp())
        ON CONFLICT DO NOTHING;
        INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id,
                                           target_agent_turn_id, correlation_id, recursion_depth, trace_id, metadata)
        VALUES ('stop-' || a.agent_turn_id, project, a.channel_id, 'report', 'response', a.agent_id, a.agent_turn_id,
                a.agent_turn_id, coalesce(state.as_count(a.context_headers ->> 'CG-Recursion-Depth'), 0),
                split_part(a.context_headers ->> 'traceparent', '-', 2), '{"kind": "stop"}')
        ON CONFLICT DO NOTHING;
        -- an end that waits for our lock compares this
        UPDATE state.agent_state_head x SET updated_at = clock_timestamp()
        WHERE x.agent_id = mine.agent_id AND x.project_id = project;
    END IF;
    RETURN QUERY SELECT 'accepted', NULL, mine.agent_id, mine.channel_id, NULL, NULL::bigint, target, NULL::jsonb;
    RETURN QUERY SELECT 'queued', i.agent_turn_id, i.agent_id, i.channel_id, i.inbox_id, 0::bigint, target,
        i.context_headers
        FROM unnest(waiting) WITH ORDINALITY w (id, place)
        JOIN state.agent_inbox i ON i.agent_turn_id = w.id AND i.project_id = project AND i.message_type = 'turn'
        ORDER BY w.place;
    RETURN QUERY SELECT CASE h.status WHEN 'dispatched' THEN h.status ELSE 'accepted' END, a.agent_turn_id, a.agent_id,
        a.channel_id, s.inbox_id, h.turn_epoch, target, a.context_headers
        FROM state.agent_inbox s
        WHERE s.correlation_id = a.agent_turn_id AND s.project_id = project AND s.message_type = 'stop';
END $$;
