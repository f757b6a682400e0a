-- What a model request may use, reserved before it leaves. `open` until it is known, or until nobody can say any more:
-- then it is spent whole.
CREATE TABLE state.budget_reservations (
    agent_turn_id text NOT NULL,
    step          integer NOT NULL,
    attempt       integer NOT NULL,
    project_id    text NOT NULL,
    model         text NOT NULL,
    tokens        bigint NOT NULL CHECK (tokens >= 0),
    cost          bigint NOT NULL CHECK (cost >= 0),
    tokens_at     text[] NOT NULL,
    cost_at       text[] NOT NULL,
    status        text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'settled', 'unsettled', 'released')),
    used_tokens   bigint CHECK (used_tokens >= 0),
    used_cost     bigint CHECK (used_cost >= 0),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at    timestamptz,
    PRIMARY KEY (agent_turn_id, step, attempt),
    CONSTRAINT reservation_is_settled CHECK ((status = 'open') = (settled_at IS NULL)),
    CONSTRAINT use_is_known CHECK ((status IN ('settled', 'released')) =
        (used_tokens IS NOT NULL AND used_cost IS NOT NULL))
) WITH (fillfactor = 70);

COMMENT ON COLUMN state.budget_reservations.tokens_at IS 'the budgets that are charged for its tokens';
COMMENT ON COLUMN state.budget_reservations.used_tokens IS
    'null while it is open, and where nobody knows: then tokens counts';
COMMENT ON COLUMN state.budget_reservations.status IS
    'open; settled: the use is known; released: nothing was used; unsettled: part of it is unknown and booked whole';
