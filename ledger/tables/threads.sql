-- Root threads of the message pump (protocol §9). version rises with every change, so that a reader
-- ignores an answer that a newer one has overtaken.
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
CREATE INDEX threads_project_open ON state.threads (project_id COLLATE "C") WHERE status = 'open';
