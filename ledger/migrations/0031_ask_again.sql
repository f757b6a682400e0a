-- Strategies of an enqueue on turns that the same principal has in the same conversation (protocol §6, enqueue).

-- Turns whose requester took them back, by the box of their conversation: later turns read none of their cards there. Written before
-- such a turn is over, removed with the box. No foreign key: it would lock the boxes that are being made, together with the outcomes.
CREATE TABLE state.rollbacks (
    box_id        uuid NOT NULL,
    agent_turn_id text NOT NULL,
    project_id    text NOT NULL,
    by_turn_id    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (box_id, agent_turn_id)
);
CREATE INDEX rollbacks_turn ON state.rollbacks (agent_turn_id);
COMMENT ON TABLE state.rollbacks IS 'turns that were rolled back: later turns read none of their cards in this box';
COMMENT ON COLUMN state.rollbacks.by_turn_id IS 'the turn that took their place';

-- The end of a turn that was rolled back: its outcome says so, the box gets another time, by which workers read it anew, and is read
-- from the latest cut that no such turn has made, or from its beginning. A turn that was not costs one look by key.
CREATE FUNCTION state.roll_back() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r state.rollbacks;
    cut record;
BEGIN
    SELECT x.* INTO r FROM state.rollbacks x WHERE x.agent_turn_id = NEW.agent_turn_id ORDER BY x.created_at LIMIT 1;
    IF NOT FOUND THEN
        RETURN NEW;
    END IF;
    NEW.stats := NEW.stats || jsonb_build_object('rolled_back_by', r.by_turn_id);
    UPDATE public.boxes b SET updated_at = clock_timestamp() WHERE b.box_id = r.box_id;
    IF EXISTS (SELECT FROM state.memory_cuts m JOIN public.cards c ON c.card_id = m.cut_card_id
               WHERE m.box_id = r.box_id AND c.metadata ->> 'agent_turn_id' = NEW.agent_turn_id) THEN
        SELECT c.card_id, (SELECT min(f.position) FROM public.box_cards f
                           WHERE f.card_id = c.content #>> '{data,first_card_id}' AND f.box_id = r.box_id) AS position
        INTO cut FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
        WHERE b.box_id = r.box_id AND c.metadata ->> 'type' = 'memory.cut' AND c.metadata ->> 'author_id' = 'system'
          AND NOT EXISTS (SELECT FROM state.rollbacks x WHERE x.box_id = r.box_id AND x.agent_turn_id = c.metadata ->> 'agent_turn_id')
        ORDER BY b.position DESC LIMIT 1;
        UPDATE state.memory_cuts m SET position = coalesce(cut.position, 1), cut_card_id = coalesce(cut.card_id, m.cut_card_id),
               updated_at = now()
        WHERE m.box_id = r.box_id;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER outcomes_roll_back BEFORE INSERT ON state.turn_outcomes FOR EACH ROW EXECUTE FUNCTION state.roll_back();

-- What a turn that was enqueued in this transaction finds in its conversation: the turns that its principal has there, in hand or
-- queued, without those that another turn asked for. The enqueue has locked the agent's head, so none comes, goes or moves meanwhile.
-- The first row has the verdict on the whole: accepted | no_conversation | queue_full | turn_in_progress (reject, steer; names the
-- newest; one that is asked to stop is none to steer), with all of which but the first the caller rolls back. With interrupt and rollback the turn in hand is asked to
-- stop by a row of its inbox, also before it begins, and the new turn takes the first place of its conversation in the queue; a row
-- for each turn that stops follows, with the verdict of request_stop on it: queued | dispatched | accepted. The caller ends those that are queued, then marks the tree of the one in hand: nodes come last.
CREATE FUNCTION state.make_way(project text, turn text, strategy text, principal text, why text, max_queued_turns integer)
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
BEGIN
    SELECT i.* INTO mine FROM state.agent_inbox i
    WHERE i.agent_turn_id = turn AND i.project_id = project AND i.message_type = 'turn';
    conversation := mine.payload ->> 'conversation_id';
    IF conversation IS NULL THEN
        RETURN QUERY SELECT 'no_conversation', NULL, NULL, NULL, NULL, NULL::bigint, NULL, NULL::jsonb;
        RETURN;
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x WHERE x.agent_id = mine.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    IF h.active_agent_turn_id <> turn THEN
        SELECT i.* INTO a FROM state.agent_inbox i
        WHERE i.inbox_id = h.active_inbox_id AND i.message_type = 'turn' AND i.channel_id = mine.channel_id
          AND i.payload ->> 'conversation_id' = conversation AND i.context_headers ->> 'CG-Sender' = principal
          AND NOT i.context_headers ? 'CG-Parent-Turn-Id';
    END IF;
    waiting := ARRAY(
        SELECT i.agent_turn_id FROM state.agent_inbox i
        WHERE i.agent_id = mine.agent_id AND i.project_id = project AND i.archived_at IS NULL AND i.next_retry_at = 'infinity'
          AND i.status = 'queued' AND i.inbox_id <> mine.inbox_id AND i.channel_id = mine.channel_id
          AND i.payload ->> 'conversation_id' = conversation AND i.context_headers ->> 'CG-Sender' = principal
          AND NOT i.context_headers ? 'CG-Parent-Turn-Id'
        ORDER BY i.created_at);
    IF strategy = 'steer' THEN
        waiting := ARRAY(SELECT w.id FROM unnest(waiting) WITH ORDINALITY w (id, place) WHERE NOT state.is_marked(w.id) ORDER BY w.place);
        IF state.is_marked(a.agent_turn_id) OR EXISTS (
                SELECT FROM state.agent_inbox s WHERE s.correlation_id = a.agent_turn_id AND s.project_id = project AND s.message_type = 'stop') THEN
            a := NULL;
        END IF;
    END IF;
    newest := coalesce(waiting[cardinality(waiting)], a.agent_turn_id);
    stopped := array_remove(waiting || a.agent_turn_id, NULL);
    IF strategy IN ('reject', 'steer') THEN
        RETURN QUERY SELECT CASE WHEN newest IS NULL THEN 'accepted' ELSE 'turn_in_progress' END,
            newest, mine.agent_id, mine.channel_id, NULL, NULL::bigint, NULL, NULL::jsonb;
        RETURN;
    END IF;
    IF max_queued_turns > 0 AND mine.status = 'queued' AND max_queued_turns + cardinality(waiting) < (
            SELECT count(*) FROM state.agent_inbox i
            WHERE i.agent_id = mine.agent_id AND i.project_id = project AND i.archived_at IS NULL AND i.next_retry_at = 'infinity') THEN
        RETURN QUERY SELECT 'queue_full', NULL, NULL, NULL, NULL, NULL::bigint, NULL, NULL::jsonb;
        RETURN;
    END IF;
    SELECT r.worker_target INTO target FROM resource.project_agents r WHERE r.agent_id = mine.agent_id AND r.project_id = project;
    SELECT i.agent_turn_id AS turn_id, i.created_at - interval '1 microsecond' AS moment INTO place FROM state.agent_inbox i
    WHERE i.agent_id = mine.agent_id AND i.project_id = project AND i.archived_at IS NULL AND i.next_retry_at = 'infinity'
      AND i.status = 'queued' AND i.inbox_id <> mine.inbox_id AND i.agent_turn_id <> ALL (waiting) AND i.channel_id = mine.channel_id
      AND i.payload ->> 'conversation_id' = conversation AND mine.status = 'queued' AND i.created_at < mine.created_at
    ORDER BY i.created_at LIMIT 1;
    UPDATE state.agent_inbox i SET created_at = coalesce(place.moment, i.created_at), payload = i.payload || jsonb_build_object(
        'multitask', jsonb_strip_nulls(jsonb_build_object('strategy', strategy, 'ahead_of', place.turn_id,
                                                          'stopped', to_jsonb(stopped))))
    WHERE i.inbox_id = mine.inbox_id;
    IF strategy = 'rollback' THEN
        INSERT INTO state.rollbacks (box_id, agent_turn_id, project_id, by_turn_id)
        SELECT state.as_uuid(mine.payload ->> 'output_box_id'), x.id, project, turn FROM unnest(stopped) x (id)
        ON CONFLICT DO NOTHING;
    END IF;
    IF a.agent_turn_id IS NOT NULL THEN
        INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                                       turn_epoch, context_headers, payload, status, next_retry_at, created_at)
        VALUES ('stop-' || a.agent_turn_id, project, a.agent_id, a.channel_id, 'stop', 'report', a.agent_turn_id, a.agent_turn_id,
                h.turn_epoch, a.context_headers, jsonb_build_object('reason', why), 'pending', now(), clock_timestamp())
        ON CONFLICT DO NOTHING;
        INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                           correlation_id, recursion_depth, trace_id, metadata)
        VALUES ('stop-' || a.agent_turn_id, project, a.channel_id, 'report', 'response', a.agent_id, a.agent_turn_id, a.agent_turn_id,
                coalesce(state.as_count(a.context_headers ->> 'CG-Recursion-Depth'), 0),
                split_part(a.context_headers ->> 'traceparent', '-', 2), '{"kind": "stop"}')
        ON CONFLICT DO NOTHING;
        -- an end that waits for our lock compares this
        UPDATE state.agent_state_head x SET updated_at = clock_timestamp() WHERE x.agent_id = mine.agent_id AND x.project_id = project;
    END IF;
    RETURN QUERY SELECT 'accepted', NULL, mine.agent_id, mine.channel_id, NULL, NULL::bigint, target, NULL::jsonb;
    RETURN QUERY SELECT 'queued', i.agent_turn_id, i.agent_id, i.channel_id, i.inbox_id, 0::bigint, target, i.context_headers
        FROM unnest(waiting) WITH ORDINALITY w (id, place)
        JOIN state.agent_inbox i ON i.agent_turn_id = w.id AND i.project_id = project AND i.message_type = 'turn' ORDER BY w.place;
    RETURN QUERY SELECT CASE h.status WHEN 'dispatched' THEN h.status ELSE 'accepted' END, a.agent_turn_id, a.agent_id, a.channel_id, s.inbox_id, h.turn_epoch, target, a.context_headers
        FROM state.agent_inbox s
        WHERE s.correlation_id = a.agent_turn_id AND s.project_id = project AND s.message_type = 'stop';
END $$;
