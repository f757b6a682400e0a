-- The box that a conversation's pointer names now. Volatile, so that it sees the newest: a lease holds the agent's
-- head, under whose lock the pointer moves, and its own snapshot may be older than the lock.
CREATE OR REPLACE FUNCTION state.conversation_box(project text, agent text, channel text, conversation text)
RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT c.output_box_id FROM state.conversations c
            WHERE c.agent_id = agent AND c.conversation_id = conversation AND c.channel_id = channel
              AND c.project_id = project);
END $$;
