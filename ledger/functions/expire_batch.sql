-- Decides a batch whose deadline has passed, or whose call waits no more; null if it is neither, or being decided. One
-- batch a transaction: of two, where the parent of one is a task of the other, the second would deadlock with that
-- parent's end.
CREATE OR REPLACE FUNCTION state.expire_batch(batch text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    b state.pmo_batches;
    verdict text;
BEGIN
    SELECT x.* INTO b FROM state.pmo_batches x
    WHERE x.batch_id = batch AND x.status = 'running' FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND OR (b.deadline_at > now() AND (b.peer_card_id IS NOT NULL OR EXISTS (
            SELECT FROM state.turn_waiting_tools w
            WHERE w.tool_call_id = b.parent_tool_call_id AND w.project_id = b.project_id
              AND w.wait_status = 'waiting'))) THEN
        RETURN NULL;
    END IF;
    verdict := CASE WHEN b.partial_at_deadline AND b.failed_count + b.open_count < b.task_count THEN 'partial'
        ELSE 'timeout' END;
    PERFORM state.mark_subtrees(
        state.decide(batch, verdict, batch, CASE b.losers WHEN 'stop' THEN 'timeout' ELSE 'running' END),
        'batch_deadline', batch, false, NULL);
    RETURN (SELECT x.status FROM state.pmo_batches x WHERE x.batch_id = batch);
END $$;
