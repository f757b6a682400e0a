-- Turns that are over for everybody: they ended before a moment, were announced, have no live inbox row, and no thread
-- that stays names them. A turn stays as long as a child of it is not over, as long as its parent waits for its batch,
-- and, if it has a budget, until that is closed and all turns of its tree are over, which may be charged to it. OFFSET
-- 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.removable_turns(before timestamptz)
RETURNS TABLE (agent_turn_id text, project_id text, agent_id text, output_box_id uuid, turn_epoch bigint)
LANGUAGE sql STABLE AS $$
    SELECT o.agent_turn_id, o.project_id, o.agent_id, o.output_box_id, o.turn_epoch FROM state.turn_outcomes o
    WHERE o.ended_at < before AND o.announced_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = o.agent_turn_id
          AND i.archived_at IS NULL OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.pmo_batches b WHERE b.parent_agent_turn_id = o.agent_turn_id
                        AND (b.status = 'running' OR b.open_count > 0) OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.pmo_batch_tasks t JOIN state.pmo_batches b ON b.batch_id = t.batch_id
                      WHERE t.current_agent_turn_id = o.agent_turn_id AND b.status = 'running' OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.budgets g WHERE g.budget_id = o.agent_turn_id
          AND (g.closed_at IS NULL OR EXISTS (
          SELECT FROM state.turn_nodes me JOIN state.turn_nodes n ON n.root_turn_id = me.root_turn_id
          WHERE me.agent_turn_id = o.agent_turn_id AND NOT n.ended OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.thread_messages m WHERE m.agent_turn_id = o.agent_turn_id
            AND NOT EXISTS (SELECT FROM state.prunable_threads(before) t WHERE t.thread_id = m.thread_id OFFSET 0)
                OFFSET 0)
$$;
