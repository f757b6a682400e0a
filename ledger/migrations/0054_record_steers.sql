-- Steers and decisions leave a row in the inbox and an edge, as reports and stops do (protocol §4.4): written and settled by triggers of
-- their tables, in the statement that accepts, takes, applies, skips or decides, whichever that is and of whichever release. Such a row
-- is never due, so no claim of any release takes it. Plain turns fire none of these triggers.

CREATE FUNCTION state.record_steer() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                                       turn_epoch, context_headers, payload, status, next_retry_at, created_at)
        SELECT NEW.steer_id, NEW.project_id, NEW.agent_id, i.channel_id, 'steer', 'report', NEW.steer_id, NEW.agent_turn_id, i.turn_epoch,
               i.context_headers || jsonb_build_object('CG-Sender', NEW.steered_by),
               jsonb_build_object('steer_card_id', NEW.steer_id, 'priority', NEW.priority), 'pending', 'infinity', NEW.created_at
        FROM state.agent_inbox i
        WHERE i.agent_turn_id = NEW.agent_turn_id AND i.project_id = NEW.project_id AND i.message_type = 'turn'
        ON CONFLICT DO NOTHING;
        INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                           correlation_id, recursion_depth, trace_id, metadata)
        SELECT 'steer-' || NEW.steer_id, NEW.project_id, i.channel_id, 'report', 'response', NEW.agent_id, NEW.agent_turn_id, NEW.steer_id,
               coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0),
               split_part(i.context_headers ->> 'traceparent', '-', 2), '{"kind": "steer"}'
        FROM state.agent_inbox i WHERE i.inbox_id = NEW.steer_id
        ON CONFLICT DO NOTHING;
    ELSE
        UPDATE state.agent_inbox i SET
            status = CASE NEW.status WHEN 'taken' THEN 'processing' WHEN 'applied' THEN 'consumed' ELSE 'skipped' END,
            processed_at = CASE NEW.status WHEN 'taken' THEN clock_timestamp() ELSE i.processed_at END,
            archived_at = NEW.settled_at, next_retry_at = coalesce(NEW.settled_at, i.next_retry_at),
            last_error = CASE NEW.status WHEN 'skipped' THEN 'already_final' END
        WHERE i.inbox_id = NEW.steer_id AND i.message_type = 'steer';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER steers_recorded AFTER INSERT ON state.steers FOR EACH ROW EXECUTE FUNCTION state.record_steer();
CREATE TRIGGER steers_settled AFTER UPDATE OF status ON state.steers FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION state.record_steer();

-- A decision is applied by the statement that records it, so its row is consumed from the begin.
CREATE FUNCTION state.record_decision() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                                   turn_epoch, context_headers, payload, status, next_retry_at, processed_at, archived_at, created_at)
    SELECT 'decision-' || NEW.interrupt_id, NEW.project_id, NEW.agent_id, NEW.channel_id, 'decision', 'report', NEW.interrupt_id,
           NEW.agent_turn_id, i.turn_epoch, i.context_headers || jsonb_build_object('CG-Sender', NEW.decided_by),
           jsonb_build_object('interrupt_id', NEW.interrupt_id, 'tool_call_id', NEW.tool_call_id, 'decision', NEW.decision),
           'consumed', NEW.decided_at, NEW.decided_at, NEW.decided_at, NEW.decided_at
    FROM state.agent_inbox i
    WHERE i.agent_turn_id = NEW.agent_turn_id AND i.project_id = NEW.project_id AND i.message_type IN ('turn', 'ui_action') LIMIT 1
    ON CONFLICT DO NOTHING;
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    SELECT 'decision-' || NEW.interrupt_id, NEW.project_id, NEW.channel_id, 'report', 'response', NEW.agent_id, NEW.agent_turn_id,
           NEW.interrupt_id, coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0),
           split_part(i.context_headers ->> 'traceparent', '-', 2), NEW.step_id, '{"kind": "decision"}'
    FROM state.agent_inbox i WHERE i.inbox_id = 'decision-' || NEW.interrupt_id
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER decisions_recorded AFTER UPDATE OF status ON state.interrupts FOR EACH ROW
    WHEN (OLD.status = 'open' AND NEW.status = 'resolved') EXECUTE FUNCTION state.record_decision();

-- The steers that a step asks the model with, in order, which it puts behind the last card of its box: those that its first attempt
-- takes, or an earlier attempt of it took. The caller holds the head, and a function sees what was committed before it had that. Workers
-- of before have the function without a box, and put the cards there as they commit.
CREATE FUNCTION state.take_steers_into_box(turn text, step text, first boolean, box uuid)
RETURNS TABLE (seq bigint, card_id text, content jsonb, metadata jsonb, expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last bigint;
    placed bigint;
BEGIN
    IF first THEN
        UPDATE state.steers s SET status = 'taken', step_id = step WHERE s.agent_turn_id = turn AND s.status = 'waiting' AND s.due;
    END IF;
    SELECT greatest(max(b.position), (SELECT h.output_position FROM state.agent_state_head h WHERE h.output_box_id = box), 0) INTO last
    FROM public.box_cards b WHERE b.box_id = box;
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT box, last + row_number() OVER (ORDER BY s.seq), s.steer_id FROM state.steers s
    WHERE s.agent_turn_id = turn AND s.status = 'taken' AND s.step_id = step
      AND NOT EXISTS (SELECT FROM public.box_cards b WHERE b.card_id = s.steer_id AND b.box_id = box);
    GET DIAGNOSTICS placed = ROW_COUNT;
    IF placed > 0 THEN  -- a stop that waits for the head, and writes to the box, does not see the cards
        UPDATE state.agent_state_head h SET output_position = last + placed WHERE h.output_box_id = box;
    END IF;
    RETURN QUERY SELECT s.seq, c.card_id, c.content, c.metadata, c.expires_at FROM state.steers s
        JOIN public.cards c ON c.card_id = s.steer_id AND c.tenant_id = s.project_id AND state.is_alive(c.expires_at, c.deleted_at)
        WHERE s.agent_turn_id = turn AND s.status = 'taken' AND s.step_id = step ORDER BY s.seq;
END $$;

-- What was said and decided before.
INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id, turn_epoch,
                               context_headers, payload, status, next_retry_at, archived_at, last_error, created_at)
SELECT s.steer_id, s.project_id, s.agent_id, i.channel_id, 'steer', 'report', s.steer_id, s.agent_turn_id, i.turn_epoch,
       i.context_headers || jsonb_build_object('CG-Sender', s.steered_by),
       jsonb_build_object('steer_card_id', s.steer_id, 'priority', s.priority),
       CASE s.status WHEN 'waiting' THEN 'pending' WHEN 'taken' THEN 'processing' WHEN 'applied' THEN 'consumed' ELSE 'skipped' END,
       coalesce(s.settled_at, 'infinity'), s.settled_at, CASE s.status WHEN 'skipped' THEN 'already_final' END, s.created_at
FROM state.steers s JOIN state.agent_inbox i ON i.agent_turn_id = s.agent_turn_id AND i.project_id = s.project_id AND i.message_type = 'turn'
ON CONFLICT DO NOTHING;
INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id, turn_epoch,
                               context_headers, payload, status, next_retry_at, processed_at, archived_at, created_at)
SELECT 'decision-' || q.interrupt_id, q.project_id, q.agent_id, q.channel_id, 'decision', 'report', q.interrupt_id, q.agent_turn_id, i.turn_epoch,
       i.context_headers || jsonb_build_object('CG-Sender', q.decided_by),
       jsonb_build_object('interrupt_id', q.interrupt_id, 'tool_call_id', q.tool_call_id, 'decision', q.decision),
       'consumed', q.decided_at, q.decided_at, q.decided_at, q.decided_at
FROM state.interrupts q
JOIN state.agent_inbox i ON i.agent_turn_id = q.agent_turn_id AND i.project_id = q.project_id AND i.message_type IN ('turn', 'ui_action')
WHERE q.status = 'resolved'
ON CONFLICT DO NOTHING;
INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id, correlation_id,
                                   recursion_depth, trace_id, metadata)
SELECT CASE i.message_type WHEN 'steer' THEN 'steer-' || i.correlation_id ELSE i.inbox_id END, i.project_id, i.channel_id, 'report', 'response',
       i.agent_id, i.agent_turn_id, i.correlation_id, coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0),
       split_part(i.context_headers ->> 'traceparent', '-', 2), jsonb_build_object('kind', i.message_type)
FROM state.agent_inbox i WHERE i.message_type IN ('steer', 'decision')
ON CONFLICT DO NOTHING;
