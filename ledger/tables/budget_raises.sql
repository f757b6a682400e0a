-- What operators gave budgets, or took from them. Each raise is a row of its own, unique by its key: a request that is
-- repeated after others changes nothing, and the audit sums raises against the grant (protocol §6, raise_budget).
CREATE TABLE state.budget_raises (
    project_id     text COLLATE "C" NOT NULL,
    correlation_id text COLLATE "C" NOT NULL,
    budget_id      text NOT NULL REFERENCES state.budgets ON DELETE CASCADE,
    max_tokens     bigint,
    max_cost       bigint,
    max_turns      bigint,
    raised_by      text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (correlation_id, project_id)
);

CREATE INDEX budget_raises_budget ON state.budget_raises (budget_id);

COMMENT ON TABLE state.budget_raises IS 'what operators gave budgets, or took from them';
