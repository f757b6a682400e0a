-- Removes the agents of removed turns that are instances of profiles without a turn: they were made for what is gone.
-- OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.forget_deleted_agents(deletion text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    project text := (SELECT d.project_id FROM state.deletions d WHERE d.deletion_id = deletion);
    unused text[];
BEGIN
    unused := ARRAY(
        SELECT g.project_id || '/' || g.agent_id FROM state.deletion_items a
        JOIN resource.project_agents g ON g.agent_id = a.item_id AND g.project_id = project
        JOIN state.agent_state_head h ON h.agent_id = g.agent_id AND h.project_id = g.project_id
        WHERE a.deletion_id = deletion AND a.kind = 'agent' AND g.metadata ? 'instance_of' AND h.status = 'idle'
        ORDER BY g.agent_id FOR UPDATE OF g SKIP LOCKED);
    PERFORM state.remove_instances(ARRAY(
        SELECT u.id FROM unnest(unused) u (id)
        WHERE NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.project_id COLLATE "C" = project
              AND i.agent_id COLLATE "C" = split_part(u.id, '/', 2) AND i.message_type IN ('turn', 'ui_action')
              AND i.agent_turn_id >= '' OFFSET 0)));
END $$;
