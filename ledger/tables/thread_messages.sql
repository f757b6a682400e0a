-- A message on its way to a segment. pending -> handling (a handler runs) | waiting (an agent's turn is out) -> handled
-- | canceled. request_id is the message from outside that it descends from, number its place in the thread, hop its
-- distance from that. segment_id is of its thread, which both go with: a key of its own would have every retention look
-- for messages by segment.
CREATE TABLE state.thread_messages (
    message_id      text PRIMARY KEY,
    thread_id       text NOT NULL REFERENCES state.threads ON DELETE CASCADE,
    project_id      text NOT NULL,
    number          integer NOT NULL,
    request_id      text NOT NULL,
    cause_id        text,
    hop             integer NOT NULL,
    segment_id      text NOT NULL,
    from_id         text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('request', 'response', 'self', 'system')),
    payload_card_id text NOT NULL,
    status          text NOT NULL DEFAULT 'pending'
                    CHECK (status IN ('pending', 'handling', 'waiting', 'handled', 'canceled')),
    attempt         integer NOT NULL DEFAULT 0,
    begun_by        text,
    agent_turn_id   text,
    deadline        timestamptz,
    ended_by        text,
    effect          text,
    correlation_id  text,
    request_digest  text,
    reply_to        text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    begun_at        timestamptz,
    ended_at        timestamptz,
    -- The trace, depth and lineage of a message from outside that joined a thread; null: those of its thread.
    context_headers jsonb
) WITH (fillfactor = 70);

CREATE INDEX messages_thread ON state.thread_messages (thread_id, number);
CREATE INDEX messages_open ON state.thread_messages (thread_id) WHERE status IN ('pending', 'handling', 'waiting');
CREATE UNIQUE INDEX messages_correlation ON state.thread_messages (correlation_id, project_id)
    WHERE correlation_id IS NOT NULL;
CREATE INDEX messages_turn ON state.thread_messages (agent_turn_id) WHERE agent_turn_id IS NOT NULL;
CREATE INDEX messages_ended_by ON state.thread_messages (ended_by) WHERE ended_by IS NOT NULL;

COMMENT ON COLUMN state.thread_messages.begun_by IS 'the run that began it last: a repeat of it is no further attempt';
COMMENT ON COLUMN state.thread_messages.ended_by IS 'the message whose handling ended this one, where it was canceled';
COMMENT ON COLUMN state.thread_messages.effect IS
    'what its handling came to: forward, self, respond, nothing, timeout, limit';
