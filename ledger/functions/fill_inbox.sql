-- Fills what a v1r4 writer leaves out of an inbox row, or writes as null: it keeps ids in the payload, knows no retry
-- clock, queues a turn as due at once, consumes its command anchors without archiving them, and gives a stop a name of
-- its own: here it has its turn's, by which the turn's end settles it; a cascade's keeps the name that mark_subtrees
-- gives it. A tool that was called before an era began reports under the epoch of then: the report is for the call as
-- it waits now. Rows that have a digest are the kernel's own turns, which lack nothing.
CREATE OR REPLACE FUNCTION state.fill_inbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.created_at IS NULL OR NEW.next_retry_at IS NULL OR NEW.agent_turn_id IS NULL OR NEW.turn_epoch IS NULL
        OR NEW.correlation_id IS NULL OR NEW.channel_id IS NULL OR NEW.status IS NULL OR NEW.retry_count IS NULL
        OR NEW.payload IS NULL OR NEW.context_headers ->> 'traceparent' IS NULL
        OR NEW.context_headers ->> 'CG-Recursion-Depth' IS NULL
        OR (NEW.status = 'queued' AND NEW.next_retry_at <> 'infinity')
        OR (NEW.status IN ('consumed', 'skipped', 'error') AND NEW.archived_at IS NULL)
        OR (NEW.message_type = 'stop' AND NEW.correlation_id <> NEW.agent_turn_id
            AND NEW.correlation_id <> 'cascade-' || NEW.agent_turn_id)) IS NOT TRUE THEN
        RETURN NEW;
    END IF;
    NEW.channel_id := coalesce(NEW.channel_id, 'public');
    NEW.status := coalesce(NEW.status, 'pending');
    NEW.retry_count := coalesce(NEW.retry_count, 0);
    NEW.payload := coalesce(NEW.payload, '{}');
    NEW.context_headers := jsonb_build_object(
        'CG-Recursion-Depth', '0',
        'traceparent', format('00-%s-%s-01', replace(gen_random_uuid()::text, '-', ''),
                              left(replace(gen_random_uuid()::text, '-', ''), 16))
    ) || coalesce(jsonb_strip_nulls(NEW.context_headers), '{}');
    NEW.created_at := coalesce(NEW.created_at, clock_timestamp());
    NEW.next_retry_at := CASE WHEN NEW.status = 'queued' THEN 'infinity' ELSE coalesce(NEW.next_retry_at, now()) END;
    NEW.agent_turn_id := coalesce(NEW.agent_turn_id, NEW.payload ->> 'agent_turn_id');
    NEW.turn_epoch := coalesce(NEW.turn_epoch, state.as_epoch(NEW.payload ->> 'turn_epoch'), 0);
    NEW.correlation_id := coalesce(NEW.correlation_id, NEW.payload ->> 'tool_call_id',
        NEW.payload ->> 'correlation_id');
    IF NEW.message_type = 'stop' AND NEW.correlation_id IS DISTINCT FROM 'cascade-' || NEW.agent_turn_id THEN
        NEW.correlation_id := NEW.agent_turn_id;
    END IF;
    IF NEW.status IN ('consumed', 'skipped', 'error') THEN
        NEW.archived_at := coalesce(NEW.archived_at, now());
    END IF;
    IF NEW.message_type = 'tool_result' AND NEW.turn_epoch > 0 THEN
        NEW.turn_epoch := coalesce((
            SELECT w.turn_epoch FROM state.turn_waiting_tools w, state.ledger_era e
            WHERE e.is_only AND w.tool_call_id = NEW.correlation_id AND w.project_id = NEW.project_id
              AND w.agent_turn_id = NEW.agent_turn_id AND w.turn_epoch = e.epoch_floor
              AND NEW.turn_epoch < e.epoch_floor), NEW.turn_epoch);
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER inbox_filled BEFORE INSERT ON state.agent_inbox FOR EACH ROW
    WHEN (NEW.request_digest IS NULL) EXECUTE FUNCTION state.fill_inbox();
