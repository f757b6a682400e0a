-- Turns that may go: they ended before a moment, were announced, have no live inbox row, and no thread that stays names
-- them. The last turn of an agent stays, since the agent's pointer stands for it, unless the agent is an instance that
-- was made for this one request and goes with it. A turn stays as long as a child of it is not over, as long as its
-- parent waits for its batch, and, if it has a budget, until that is closed and all turns of its tree are over, which
-- may be charged to it. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.prunable_turns(before timestamptz) RETURNS TABLE (agent_turn_id text, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT o.agent_turn_id, o.project_id FROM state.turn_outcomes o
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
      AND (NOT EXISTS (
          SELECT FROM state.agent_state_pointers p
          WHERE p.agent_id = o.agent_id AND p.project_id = o.project_id AND p.last_output_box_id = o.output_box_id
            AND o.turn_epoch > 0 AND NOT EXISTS (
                SELECT FROM state.agent_inbox l JOIN state.turn_outcomes e ON e.agent_turn_id = l.agent_turn_id
                WHERE lower(l.payload ->> 'output_box_id') = o.output_box_id::text
                  AND l.message_type IN ('turn', 'ui_action')
                  AND l.agent_id = o.agent_id AND l.project_id = o.project_id
                  AND l.turn_epoch > o.turn_epoch OFFSET 0) OFFSET 0)
        OR EXISTS (
          SELECT FROM resource.project_agents a JOIN state.agent_state_head h ON h.agent_id = a.agent_id
              AND h.project_id = a.project_id
          WHERE a.agent_id = o.agent_id AND a.project_id = o.project_id
            AND a.metadata ->> 'agent_turn_id' = o.agent_turn_id
            AND h.queue_seq = 1 OFFSET 0))
$$;
