-- Instances of profiles that have had no turn since a moment, in hand or waiting. Of one that was made for one request,
-- and has had no other: that turn, which may go. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.unused_instances(before timestamptz)
RETURNS TABLE (agent_id text, project_id text, only_turn_id text)
LANGUAGE sql STABLE AS $$
    SELECT a.agent_id, a.project_id, t.agent_turn_id FROM resource.project_agents a
    JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = a.project_id
    LEFT JOIN LATERAL (
        SELECT p.agent_turn_id FROM state.prunable_turns(before) p
        WHERE p.agent_turn_id = a.metadata ->> 'agent_turn_id' AND h.queue_seq = 1 OFFSET 0) t ON true
    WHERE a.metadata ? 'instance_of' AND a.status IN ('active', 'dormant') AND h.status = 'idle'
      AND h.updated_at < before
      AND NOT EXISTS (SELECT FROM state.agent_inbox i
                      WHERE i.agent_id = a.agent_id AND i.project_id = a.project_id AND i.archived_at IS NULL OFFSET 0)
$$;
