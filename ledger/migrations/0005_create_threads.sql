-- The message pump (protocol §9): conversations, the segments of their chains, messages, and the answers to requesters.

-- A root thread. version rises with every change, so that answers which overtake each other can be told apart.
CREATE TABLE state.threads (
    thread_id       text PRIMARY KEY,
    project_id      text NOT NULL,
    channel_id      text NOT NULL,
    worker_target   text NOT NULL,
    requester       text NOT NULL,
    status          text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'ended')),
    end_reason      text,
    version         bigint NOT NULL DEFAULT 0,
    message_count   integer NOT NULL DEFAULT 0,
    context_headers jsonb NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    ended_at        timestamptz
) WITH (fillfactor = 70);
CREATE INDEX threads_open ON state.threads (thread_id) WHERE status = 'open';
CREATE INDEX threads_created ON state.threads (project_id COLLATE "C", created_at);

-- A listener's place in a chain; what its handler sees as thread_id is segment_id. lineage holds the ids from the top to it.
CREATE TABLE state.thread_segments (
    segment_id     text PRIMARY KEY,
    thread_id      text NOT NULL REFERENCES state.threads ON DELETE CASCADE,
    parent_id      text,
    lineage        text[] NOT NULL,
    listener       text NOT NULL,
    status         text NOT NULL DEFAULT 'live' CHECK (status IN ('live', 'pruned')),
    output_box_id  uuid,
    caller_turn_id text,
    created_at     timestamptz NOT NULL DEFAULT now(),
    ended_at       timestamptz
) WITH (fillfactor = 70);
CREATE INDEX segments_thread ON state.thread_segments (thread_id, status);
COMMENT ON COLUMN state.thread_segments.output_box_id IS 'the memory of a roster agent in this segment';
COMMENT ON COLUMN state.thread_segments.caller_turn_id IS 'the turn of the nearest agent above that opened it: the parent of turns here';

-- A message on its way to a segment. pending -> handling (a handler runs) | waiting (an agent's turn is out) -> handled | canceled.
-- request_id is the message from outside that it descends from, number its place in the thread, hop its distance from that.
-- segment_id is of its thread, which both go with: a key of its own would have every retention look for messages by segment.
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
    ended_at        timestamptz
) WITH (fillfactor = 70);
CREATE INDEX messages_thread ON state.thread_messages (thread_id, number);
CREATE INDEX messages_open ON state.thread_messages (thread_id) WHERE status IN ('pending', 'handling', 'waiting');
CREATE UNIQUE INDEX messages_correlation ON state.thread_messages (correlation_id, project_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX messages_turn ON state.thread_messages (agent_turn_id) WHERE agent_turn_id IS NOT NULL;
CREATE INDEX messages_ended_by ON state.thread_messages (ended_by) WHERE ended_by IS NOT NULL;
COMMENT ON COLUMN state.thread_messages.begun_by IS 'the run that began it last: a repeat of it is no further attempt';
COMMENT ON COLUMN state.thread_messages.ended_by IS 'the message whose handling ended this one, where it was canceled';
COMMENT ON COLUMN state.thread_messages.effect IS 'what its handling came to: forward, self, respond, nothing, timeout, limit';

-- The one answer to a message from outside.
CREATE TABLE state.thread_replies (
    request_id      text PRIMARY KEY REFERENCES state.thread_messages ON DELETE CASCADE,
    thread_id       text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('reply', 'ended')),
    reason          text NOT NULL,
    payload_card_id text,
    from_id         text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    announced_at    timestamptz,
    CONSTRAINT reply_has_payload CHECK ((kind = 'reply') = (payload_card_id IS NOT NULL))
) WITH (fillfactor = 80);
CREATE INDEX replies_unannounced ON state.thread_replies (created_at) WHERE announced_at IS NULL;
CREATE INDEX replies_to_tell ON state.thread_replies (thread_id) WHERE announced_at IS NULL;
