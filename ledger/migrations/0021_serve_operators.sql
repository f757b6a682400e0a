-- Boxes made of parts, paused agents, and the listeners that operators list (protocol §6, §9).

-- A fingerprint of the request that made the box: it tells a repeat from a conflict.
ALTER TABLE public.boxes ADD COLUMN request_digest text;

-- The epoch at which the agent was paused, null while it is not paused. It is on the head because every lease locks the head: a
-- lease that waited for a pause sees it. No lease is taken while it is set, so a busy head's epoch is at most this one.
ALTER TABLE state.agent_state_head ADD COLUMN paused_at_epoch bigint;

-- The listeners of the pump's target, as the worker that started last declared them. answers: a list of {root_tag, xsd}.
CREATE TABLE state.listeners (
    worker_target text NOT NULL,
    listener      text NOT NULL,
    description   text NOT NULL,
    agent_id      text,
    is_agent      boolean NOT NULL,
    peers         text[] NOT NULL DEFAULT '{}',
    root_tag      text NOT NULL,
    xsd           text NOT NULL,
    answers       jsonb NOT NULL DEFAULT '[]',
    declared_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (worker_target, listener)
);
