-- The tasks of batches, each of which is a child's turn.
CREATE TABLE state.pmo_batch_tasks (
    batch_task_id         text PRIMARY KEY,
    batch_id              text NOT NULL REFERENCES state.pmo_batches (batch_id) ON DELETE CASCADE,
    project_id            text NOT NULL,
    agent_id              text NOT NULL,
    status                text NOT NULL DEFAULT 'pending',
    retryable             boolean NOT NULL DEFAULT true,
    next_retry_at         timestamptz NOT NULL DEFAULT now(),
    attempt_count         integer NOT NULL DEFAULT 0,
    current_agent_turn_id text,
    current_turn_epoch    bigint,
    payload_hash          text,
    profile_box_id        uuid,
    context_box_id        uuid,
    output_box_id         uuid,
    error_box_id          uuid,
    error_detail          text,
    metadata              jsonb NOT NULL DEFAULT '{}',
    created_at            timestamptz NOT NULL DEFAULT now(),
    updated_at            timestamptz NOT NULL DEFAULT now(),
    task_index            integer,
    label                 text,
    deliverable_card_id   text,
    error_code            text
) WITH (fillfactor = 70);

CREATE INDEX batch_tasks_batch ON state.pmo_batch_tasks (batch_id);
CREATE UNIQUE INDEX batch_tasks_turn ON state.pmo_batch_tasks (current_agent_turn_id)
    WHERE current_agent_turn_id IS NOT NULL;
