-- Why nothing may be asked or recorded under a call any more: parent_over | not_sent | parent_stopping; null if it may.
-- The caller has locked the head and the call's row, and passes both as they are now.
CREATE OR REPLACE FUNCTION state.refused_under_call(w state.turn_waiting_tools, h state.agent_state_head) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    stopping timestamptz;
BEGIN
    SELECT n.stopping_at INTO stopping FROM state.turn_nodes n WHERE n.agent_turn_id = w.agent_turn_id FOR SHARE;
    RETURN CASE
        WHEN w.wait_status <> 'waiting' OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id
            OR h.turn_epoch <> w.turn_epoch OR h.status <> 'suspended' OR EXISTS (  -- it is timed out
                SELECT FROM state.agent_inbox i
                WHERE i.correlation_id = w.tool_call_id AND i.project_id = w.project_id
                  AND i.message_type = 'timeout') THEN 'parent_over'
        WHEN w.held_by IS NOT NULL THEN 'not_sent'
        WHEN stopping IS NOT NULL OR EXISTS (
            SELECT FROM state.agent_inbox i
            WHERE i.correlation_id IN (w.agent_turn_id, 'cascade-' || w.agent_turn_id)
              AND i.project_id = w.project_id AND i.message_type = 'stop' AND i.archived_at IS NULL)
        THEN 'parent_stopping' END;
END $$;
