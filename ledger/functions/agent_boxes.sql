-- The boxes that an export of some agents holds: those of their turns, outcomes, conversations and pointers.
CREATE OR REPLACE FUNCTION state.agent_boxes(project text, agents text[]) RETURNS TABLE (box_id uuid)
LANGUAGE sql STABLE AS $$
    SELECT state.as_uuid(b.box_id) FROM state.agent_inbox i JOIN state.turn_boxes b ON b.agent_turn_id = i.agent_turn_id
    WHERE i.project_id = project AND i.agent_id = ANY (agents) AND i.message_type IN ('turn', 'ui_action')
    UNION SELECT o.output_box_id FROM state.turn_outcomes o WHERE o.project_id = project AND o.agent_id = ANY (agents)
    UNION SELECT c.output_box_id FROM state.conversations c WHERE c.project_id = project AND c.agent_id = ANY (agents)
    UNION SELECT p.memory_context_box_id FROM state.agent_state_pointers p
        WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT p.last_output_box_id FROM state.agent_state_pointers p
        WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT p.memory_context_box_id FROM state.channel_pointers p
        WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT p.last_output_box_id FROM state.channel_pointers p
        WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT a.profile_box_id FROM resource.project_agents a
        WHERE a.project_id = project AND a.agent_id = ANY (agents)
$$;
