-- Writes the decision of a batch that is locked and whose counts are right; returns the losers to mark. `late` is what
-- becomes of the tasks that are not over; those that were never enqueued are over now.
CREATE OR REPLACE FUNCTION state.decide(batch text, verdict text, by_whom text, late text) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    b state.pmo_batches;
    dropped integer;
BEGIN
    UPDATE state.pmo_batch_tasks t SET status = CASE late WHEN 'timeout' THEN 'timeout' ELSE 'canceled' END,
           updated_at = now(),
           error_code = CASE late WHEN 'timeout' THEN 'deadline' ELSE 'batch_decided' END
    WHERE t.batch_id = batch AND t.status = 'pending';
    GET DIAGNOSTICS dropped = ROW_COUNT;
    SELECT x.* INTO b FROM state.pmo_batches x WHERE x.batch_id = batch;
    IF NOT state.tell_parent(b, verdict, late) THEN
        verdict := 'withdrawn';
    END IF;
    UPDATE state.pmo_batches x SET status = verdict, open_count = x.open_count - dropped,
           failed_count = x.failed_count + dropped,
           decided_at = clock_timestamp(), decided_by = by_whom, updated_at = now()
    WHERE x.batch_id = batch;
    IF late = 'running' THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(SELECT t.current_agent_turn_id FROM state.pmo_batch_tasks t
        WHERE t.batch_id = batch AND t.status = 'dispatched');
END $$;
