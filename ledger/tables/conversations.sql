-- The box in which a conversation with an agent of a channel is kept: every turn of the conversation writes there. The
-- conversation '' is the one that a profile's memory keeps where an enqueue names none. Made by the conversation's
-- first enqueue, or by a client (put_conversation): then it is no agent's until a turn names it.
CREATE TABLE state.conversations (
    project_id      text NOT NULL,
    channel_id      text NOT NULL,
    agent_id        text NOT NULL,
    conversation_id text NOT NULL,
    output_box_id   uuid NOT NULL,
    turn_count      bigint NOT NULL DEFAULT 0,
    last_turn_id    text,
    notes           jsonb,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    made_by         text,
    PRIMARY KEY (agent_id, conversation_id, channel_id, project_id)
) WITH (fillfactor = 70);

-- The numbers of turns in conversations: see number_turn.
CREATE SEQUENCE state.conversation_seq;

CREATE UNIQUE INDEX conversations_box ON state.conversations (output_box_id);
-- For the lists that people read. Its collation keeps it from the other statements, which would use it by its project.
CREATE INDEX conversations_project ON state.conversations (project_id COLLATE "C", created_at);
-- A conversation by its name, of any agent and channel of a project, as people ask for it (protocol §14.1). No column
-- of it ever changes, so that counting a conversation's turns writes no index. Its collation keeps it from the
-- statements that know the agent.
CREATE INDEX conversations_name ON state.conversations (project_id COLLATE "C", conversation_id COLLATE "C");
CREATE INDEX conversations_agent ON state.conversations (project_id COLLATE "C", agent_id COLLATE "C", created_at,
    output_box_id)
    WHERE conversation_id >= '';
CREATE INDEX conversations_channel ON state.conversations (project_id COLLATE "C", channel_id COLLATE "C", created_at,
    output_box_id)
    WHERE conversation_id >= '';

-- Those of a caller that no agent has: see is_full.
CREATE INDEX conversations_unused ON state.conversations (project_id COLLATE "C", made_by) WHERE agent_id = '';

COMMENT ON COLUMN state.conversations.made_by IS 'the caller who made it; null: its first turn did';
COMMENT ON COLUMN state.conversations.turn_count IS 'turns enqueued so far, queued ones included';
COMMENT ON COLUMN state.conversations.agent_id IS 'empty: a client made it, and no agent has had a turn in it';
COMMENT ON COLUMN state.conversations.notes IS 'what a client keeps with it: {metadata, removed}; null: nothing';
