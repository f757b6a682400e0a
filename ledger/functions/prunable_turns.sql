-- Turns that retention may remove: those that are over for everybody (removable_turns), but the last one of an agent,
-- since the agent's pointer stands for it, unless the agent is an instance that was made for this one request and goes
-- with it, and those that a wake which has not fired comes from. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.prunable_turns(before timestamptz) RETURNS TABLE (agent_turn_id text, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT o.agent_turn_id, o.project_id FROM state.removable_turns(before) o
    WHERE NOT EXISTS (SELECT FROM resource.schedules s
                      WHERE s.waker_turn_id = o.agent_turn_id AND s.next_at IS NOT NULL OFFSET 0)
      AND NOT EXISTS (SELECT FROM resource.schedules s
                      WHERE s.root_turn_id = o.agent_turn_id AND s.next_at IS NOT NULL OFFSET 0)
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
