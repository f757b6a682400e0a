-- Conversations that were not used since a moment, and that no turn names: an enqueue that would go on has locked the
-- row. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.prunable_conversations(before timestamptz)
RETURNS TABLE (output_box_id uuid, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT c.output_box_id, c.project_id FROM state.conversations c
    WHERE c.updated_at < before
      AND NOT EXISTS (
          SELECT FROM state.agent_inbox i
          WHERE i.agent_id = c.agent_id AND i.payload ->> 'conversation_id' = c.conversation_id
            AND i.channel_id = c.channel_id AND i.project_id = c.project_id
            AND i.message_type IN ('turn', 'ui_action') AND NOT EXISTS (
                SELECT FROM state.prunable_turns(before) t WHERE t.agent_turn_id = i.agent_turn_id OFFSET 0) OFFSET 0)
$$;
