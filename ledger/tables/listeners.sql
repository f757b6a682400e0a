-- The listeners of the pump's target, as the worker that started last declared them. answers: a list of {root_tag,
-- xsd}.
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
