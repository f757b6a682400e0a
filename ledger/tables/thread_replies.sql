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
