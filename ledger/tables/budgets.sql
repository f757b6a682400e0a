-- A row is a turn's own grant, or what a project may spend in a day or month. A dimension without a max is not this
-- row's: turns below are charged elsewhere. from_*: the rows that the grant of that dimension was taken from; none:
-- from nobody.
CREATE TABLE state.budgets (
    budget_id        text PRIMARY KEY,
    project_id       text NOT NULL,
    channel_id       text,
    kind             text NOT NULL CHECK (kind IN ('turn', 'day', 'month')),
    agent_turn_id    text,
    depth            integer NOT NULL,
    max_tokens       bigint CHECK (max_tokens >= 0),
    max_cost         bigint CHECK (max_cost >= 0),
    max_turns        bigint CHECK (max_turns >= 0),
    spent_tokens     bigint NOT NULL DEFAULT 0 CHECK (spent_tokens >= 0),
    spent_cost       bigint NOT NULL DEFAULT 0 CHECK (spent_cost >= 0),
    spent_turns      bigint NOT NULL DEFAULT 0 CHECK (spent_turns >= 0),
    reserved_tokens  bigint NOT NULL DEFAULT 0 CHECK (reserved_tokens >= 0),
    reserved_cost    bigint NOT NULL DEFAULT 0 CHECK (reserved_cost >= 0),
    reserved_turns   bigint NOT NULL DEFAULT 0 CHECK (reserved_turns >= 0),
    unsettled_tokens bigint NOT NULL DEFAULT 0 CHECK (unsettled_tokens >= 0),
    unsettled_cost   bigint NOT NULL DEFAULT 0 CHECK (unsettled_cost >= 0),
    beyond_tokens    bigint NOT NULL DEFAULT 0 CHECK (beyond_tokens >= 0),
    beyond_cost      bigint NOT NULL DEFAULT 0 CHECK (beyond_cost >= 0),
    past_tokens      bigint NOT NULL DEFAULT 0,
    past_cost        bigint NOT NULL DEFAULT 0,
    past_turns       bigint NOT NULL DEFAULT 0,
    from_tokens      text[] NOT NULL DEFAULT '{}',
    from_cost        text[] NOT NULL DEFAULT '{}',
    from_turns       text[] NOT NULL DEFAULT '{}',
    until            timestamptz,
    warn_percent     integer NOT NULL DEFAULT 80 CHECK (warn_percent BETWEEN 1 AND 100),
    warned_at        timestamptz,
    lowered_at       timestamptz,
    ended_at         timestamptz,
    closed_at        timestamptz,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by       text,
    returned_tokens  bigint NOT NULL GENERATED ALWAYS AS (CASE WHEN closed_at IS NULL THEN 0
        ELSE greatest(max_tokens - spent_tokens - reserved_tokens, 0) END) STORED,
    returned_cost    bigint NOT NULL GENERATED ALWAYS AS (CASE WHEN closed_at IS NULL THEN 0
        ELSE greatest(max_cost - spent_cost - reserved_cost, 0) END) STORED,
    returned_turns   bigint NOT NULL GENERATED ALWAYS AS (CASE WHEN closed_at IS NULL THEN 0
        ELSE greatest(max_turns - spent_turns - reserved_turns, 0) END) STORED,
    CONSTRAINT budget_is_of_a_turn CHECK ((kind = 'turn') = (agent_turn_id IS NOT NULL)),
    CONSTRAINT closed_has_ended CHECK (closed_at IS NULL OR ended_at IS NOT NULL)
) WITH (fillfactor = 50);

-- For the lists that people read; the collation keeps it from statements that know the key.
CREATE INDEX budgets_project ON state.budgets (project_id COLLATE "C", created_at, budget_id);

COMMENT ON COLUMN state.budgets.depth IS
    'month 0, day 1, a turn''s one more than that of the row nearest above it: the order of locks';
COMMENT ON COLUMN state.budgets.spent_tokens IS 'of its own charges and of the closed grants below';
COMMENT ON COLUMN state.budgets.reserved_tokens IS
    'open reservations, and the whole of each grant below that is not closed';
COMMENT ON COLUMN state.budgets.unsettled_tokens IS
    'the part of spent that was booked whole, since nobody knows what was used';
COMMENT ON COLUMN state.budgets.beyond_tokens IS
    'the part of spent that reservations did not cover: a provider took more than was asked';
COMMENT ON COLUMN state.budgets.returned_tokens IS
    'of a closed row: what is neither spent nor reserved, and went back where it came from';
COMMENT ON COLUMN state.budgets.past_tokens IS
    'the part of spent whose turns were removed since: the other rows that say so are gone';
COMMENT ON COLUMN state.budgets.warned_at IS 'when warn_percent of a limit was passed: it is published once';
COMMENT ON COLUMN state.budgets.lowered_at IS
    'of a project''s row: when it was set below what was spent and reserved; nothing is given until that is less';
COMMENT ON COLUMN state.budgets.ended_at IS 'its turn is over; it closes when nothing of it is reserved any more';
