-- Moves the pointers of agents whose turns were just removed to the last turn that is left, where they name a box that
-- a removed turn wrote. They are locked first: a turn that ends meanwhile moves them, too.
-- OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.move_deleted_pointers(deletion text, project text, agents text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM state.agent_state_pointers p WHERE p.agent_id = ANY (agents) AND p.project_id = project
    ORDER BY p.agent_id FOR UPDATE;
    PERFORM FROM state.channel_pointers p WHERE p.agent_id = ANY (agents) AND p.project_id = project
    ORDER BY p.agent_id, p.channel_id FOR UPDATE;
    UPDATE state.agent_state_pointers p SET updated_at = now(), last_output_box_id = (
            SELECT o.output_box_id FROM state.agent_inbox i
            JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id
            WHERE i.project_id COLLATE "C" = project AND i.agent_id COLLATE "C" = p.agent_id
              AND i.message_type IN ('turn', 'ui_action') AND i.agent_turn_id >= '' AND o.turn_epoch > 0
            ORDER BY o.turn_epoch DESC LIMIT 1)
    WHERE p.agent_id = ANY (agents) AND p.project_id = project
      AND (p.last_output_box_id = p.replaced_output_box_id) IS NOT TRUE
      AND EXISTS (SELECT FROM state.deletion_items b
                  WHERE b.deletion_id = deletion AND b.kind = 'box'
                    AND b.item_id = p.last_output_box_id::text OFFSET 0);
    UPDATE state.channel_pointers p SET updated_at = now(), last_output_box_id = (
            SELECT o.output_box_id FROM state.agent_inbox i
            JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id
            WHERE i.project_id COLLATE "C" = project AND i.agent_id COLLATE "C" = p.agent_id
              AND i.channel_id COLLATE "C" = p.channel_id
              AND i.message_type IN ('turn', 'ui_action') AND i.agent_turn_id >= '' AND o.turn_epoch > 0
            ORDER BY o.turn_epoch DESC LIMIT 1)
    WHERE p.agent_id = ANY (agents) AND p.project_id = project
      AND EXISTS (SELECT FROM state.deletion_items b
                  WHERE b.deletion_id = deletion AND b.kind = 'box'
                    AND b.item_id = p.last_output_box_id::text OFFSET 0);
END $$;
