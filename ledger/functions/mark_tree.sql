-- Marks a turn that is not over and what its tree waits for, or all below it. A turn in no tree gets a node, so that
-- its own gates are closed, too, and that a first fork finds the mark: who makes a turn's first node holds its agent's
-- head. Returns null for a turn that is over or unknown; else whom it marked.
CREATE OR REPLACE FUNCTION state.mark_tree(project text, turn text, why text, whole boolean) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    agent text;
BEGIN
    SELECT i.agent_id INTO agent FROM state.agent_inbox i
    WHERE i.agent_turn_id = turn AND i.project_id = project AND i.message_type IN ('turn', 'ui_action');
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM FROM state.agent_state_head h WHERE h.agent_id = agent AND h.project_id = project FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = turn) THEN
        IF NOT whole THEN
            RETURN NULL;
        END IF;
    ELSE
        INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id)
        VALUES (turn, project, turn) ON CONFLICT DO NOTHING;
        IF FOUND THEN  -- a gate that waits for our lock, and saw no node, looks again at a head that has changed
            UPDATE state.agent_state_head h SET updated_at = now()
            WHERE h.agent_id = agent AND h.project_id = project AND h.active_agent_turn_id = turn;
        END IF;
    END IF;
    RETURN state.mark_subtrees(ARRAY[turn], why, turn, whole, NULL);
END $$;
