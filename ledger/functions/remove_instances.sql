-- Removes these locked instances, whose turns are gone, with their heads and pointers.
CREATE OR REPLACE FUNCTION state.remove_instances(ids text[]) RETURNS void LANGUAGE sql AS $$
    WITH named AS (SELECT split_part(n.id, '/', 2) AS agent_id, split_part(n.id, '/', 1) AS project_id
                   FROM unnest(ids) n (id)),
    heads AS (DELETE FROM state.agent_state_head h USING named n
              WHERE h.agent_id = n.agent_id AND h.project_id = n.project_id),
    pointers AS (DELETE FROM state.agent_state_pointers p USING named n
                 WHERE p.agent_id = n.agent_id AND p.project_id = n.project_id),
    channel_pointers AS (DELETE FROM state.channel_pointers p USING named n
                         WHERE p.agent_id = n.agent_id AND p.project_id = n.project_id),
    edges AS (
        INSERT INTO state.identity_edges (edge_id, project_id, action, target_agent_id)
        SELECT 'remove-' || n.agent_id || '-' || txid_current(), n.project_id, 'remove', n.agent_id
        FROM named n ON CONFLICT DO NOTHING
    )
    DELETE FROM resource.project_agents a USING named n WHERE a.agent_id = n.agent_id AND a.project_id = n.project_id
$$;
