-- A steer leaves a row in the inbox and an edge, as reports and stops do (protocol §4.4), in the statement that
-- accepts, takes, applies or skips it, whichever that is. Such a row is never due, so no claim takes it.
CREATE OR REPLACE FUNCTION state.record_steer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode,
                                       correlation_id, agent_turn_id, turn_epoch, context_headers, payload, status,
                                       next_retry_at, created_at)
        SELECT NEW.steer_id, NEW.project_id, NEW.agent_id, i.channel_id, 'steer', 'report', NEW.steer_id,
               NEW.agent_turn_id, i.turn_epoch, i.context_headers || jsonb_build_object('CG-Sender', NEW.steered_by),
               jsonb_build_object('steer_card_id', NEW.steer_id, 'priority', NEW.priority), 'pending', 'infinity',
               NEW.created_at
        FROM state.agent_inbox i
        WHERE i.agent_turn_id = NEW.agent_turn_id AND i.project_id = NEW.project_id AND i.message_type = 'turn'
        ON CONFLICT DO NOTHING;
        INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id,
                                           target_agent_turn_id, correlation_id, recursion_depth, trace_id, metadata)
        SELECT 'steer-' || NEW.steer_id, NEW.project_id, i.channel_id, 'report', 'response', NEW.agent_id,
               NEW.agent_turn_id, NEW.steer_id, coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0),
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

CREATE OR REPLACE TRIGGER steers_recorded AFTER INSERT ON state.steers
    FOR EACH ROW EXECUTE FUNCTION state.record_steer();

CREATE OR REPLACE TRIGGER steers_settled AFTER UPDATE OF status ON state.steers FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION state.record_steer();
