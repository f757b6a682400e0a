-- What projects may spend in a day or a month.
CREATE TABLE state.project_budgets (
    project_id text NOT NULL,
    period     text NOT NULL CHECK (period IN ('day', 'month')),
    max_tokens bigint CHECK (max_tokens >= 0),
    max_cost   bigint CHECK (max_cost >= 0),
    max_turns  bigint CHECK (max_turns >= 0),
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by text,
    PRIMARY KEY (project_id, period)
);

COMMENT ON TABLE state.project_budgets IS
    'what the turns of a project that are enqueued in a day or month (UTC) may spend together';
