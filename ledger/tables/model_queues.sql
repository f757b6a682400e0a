-- The requests to a model by one key: who waits, what was let through, until when the provider wants none (protocol
-- §7.9). A row is there while that is so, or where the operator has set a rate; nothing in it is worth keeping.
CREATE TABLE state.model_queues (
    account      text NOT NULL,  -- stands for the key and the server; not the key
    model        text NOT NULL,
    version      bigint NOT NULL,  -- drawn by who writes
    state        jsonb NOT NULL,  -- rules/model_queue.py
    paused_until timestamptz,
    waiting      integer NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account, model)
) WITH (fillfactor = 50);
