-- A decision leaves a row in the inbox and an edge (protocol §4.4). The statement that records it applies it: its row
-- is consumed from the begin.
CREATE OR REPLACE FUNCTION state.record_decision() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode,
                                   correlation_id, agent_turn_id, turn_epoch, context_headers, payload, status,
                                   next_retry_at, processed_at, archived_at, created_at)
    SELECT 'decision-' || NEW.interrupt_id, NEW.project_id, NEW.agent_id, NEW.channel_id, 'decision', 'report',
           NEW.interrupt_id, NEW.agent_turn_id, i.turn_epoch,
           i.context_headers || jsonb_build_object('CG-Sender', NEW.decided_by),
           jsonb_build_object('interrupt_id', NEW.interrupt_id, 'tool_call_id', NEW.tool_call_id, 'decision',
           NEW.decision), 'consumed', NEW.decided_at, NEW.decided_at, NEW.decided_at, NEW.decided_at
    FROM state.agent_inbox i
    WHERE i.agent_turn_id = NEW.agent_turn_id AND i.project_id = NEW.project_id
      AND i.message_type IN ('turn', 'ui_action') LIMIT 1
    ON CONFLICT DO NOTHING;
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id,
                                       target_agent_turn_id, correlation_id, recursion_depth, trace_id, parent_step_id,
                                       metadata)
    SELECT 'decision-' || NEW.interrupt_id, NEW.project_id, NEW.channel_id, 'report', 'response', NEW.agent_id,
           NEW.agent_turn_id, NEW.interrupt_id, coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0),
           split_part(i.context_headers ->> 'traceparent', '-', 2), NEW.step_id, '{"kind": "decision"}'
    FROM state.agent_inbox i WHERE i.inbox_id = 'decision-' || NEW.interrupt_id
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER decisions_recorded AFTER UPDATE OF status ON state.interrupts FOR EACH ROW
    WHEN (OLD.status = 'open' AND NEW.status = 'resolved') EXECUTE FUNCTION state.record_decision();
