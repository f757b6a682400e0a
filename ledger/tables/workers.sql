-- Which worker or bridge serves what, now (protocol §8, §9).
CREATE TABLE state.workers (
    worker_target  text NOT NULL,
    instance       text NOT NULL,
    last_seen_at   timestamptz NOT NULL DEFAULT now(),
    started_at     timestamptz NOT NULL DEFAULT now(),
    listeners      text[],
    payloads       text[],
    -- Which level of the protocol the process speaks.
    protocol_level integer,
    -- A process that ends as it should says so: what is listed as gone was killed, or lost its servers. Its row stays,
    -- since listeners that were served until now still count.
    left_at        timestamptz,
    PRIMARY KEY (worker_target, instance)
) WITH (fillfactor = 50);

COMMENT ON COLUMN state.workers.started_at IS 'since when it has signed on without a gap';
COMMENT ON COLUMN state.workers.listeners IS 'the listeners that this worker of the target has';
COMMENT ON COLUMN state.workers.payloads IS 'the root tags of the payloads that it knows';
COMMENT ON COLUMN state.workers.left_at IS 'when it ended as it should; null while it serves, or if it was killed';
