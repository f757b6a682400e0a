-- Deletions of a conversation, or of an end user with all their turns (protocol §6, conversation.delete). running: what
-- it names is stopped and removed, and nothing new of it is admitted; done: all is gone, and the row names nobody.
CREATE TABLE state.deletions (
    deletion_id     text PRIMARY KEY,
    project_id      text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('conversation', 'end_user')),
    channel_id      text,
    agent_id        text,
    conversation_id text,
    end_user        text,
    status          text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'done')),
    turns           bigint NOT NULL DEFAULT 0,
    boxes           bigint NOT NULL DEFAULT 0,
    cards           bigint NOT NULL DEFAULT 0,
    emptied         bigint NOT NULL DEFAULT 0,
    requested_by    text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    advanced_at     timestamptz NOT NULL DEFAULT now(),
    ended_at        timestamptz,
    CONSTRAINT done_names_nobody CHECK (
        status = 'running' OR num_nonnulls(channel_id, agent_id, conversation_id, end_user) = 0)
) WITH (fillfactor = 70);

CREATE INDEX deletions_running ON state.deletions (project_id) WHERE status = 'running';
CREATE INDEX deletions_project ON state.deletions (project_id COLLATE "C", created_at);

COMMENT ON COLUMN state.deletions.emptied IS 'cards that keep their place in a box that stays, without content';
COMMENT ON COLUMN state.deletions.advanced_at IS 'when a bridge last worked on it';
