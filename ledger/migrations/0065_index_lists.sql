-- Lists of turns and conversations narrowed to an agent, a channel or a conversation: each enters an index of its own, in the order
-- of its pages. Without them a list of a rare agent read all turns of its project, and held a connection of everybody meanwhile. Their
-- conditions on ids, which every row meets, keep statements off them that have better ones and do not name these conditions.
CREATE INDEX inbox_agent_turns ON state.agent_inbox (project_id COLLATE "C", agent_id COLLATE "C", created_at, agent_turn_id)
    WHERE message_type IN ('turn', 'ui_action') AND agent_turn_id >= '';
CREATE INDEX inbox_channel_turns ON state.agent_inbox (project_id COLLATE "C", channel_id COLLATE "C", created_at, agent_turn_id)
    WHERE message_type IN ('turn', 'ui_action') AND agent_turn_id >= '';
CREATE INDEX inbox_conversation_turns ON state.agent_inbox (project_id COLLATE "C", (payload ->> 'conversation_id') COLLATE "C", created_at, agent_turn_id)
    WHERE message_type IN ('turn', 'ui_action') AND agent_turn_id >= '' AND (payload ->> 'conversation_id') IS NOT NULL;
CREATE INDEX conversations_agent ON state.conversations (project_id COLLATE "C", agent_id COLLATE "C", created_at, output_box_id)
    WHERE conversation_id >= '';
CREATE INDEX conversations_channel ON state.conversations (project_id COLLATE "C", channel_id COLLATE "C", created_at, output_box_id)
    WHERE conversation_id >= '';
