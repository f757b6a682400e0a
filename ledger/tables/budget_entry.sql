-- What one transaction changes at one budget: reserved, spent, unsettled and beyond of tokens and of cost; reserved and
-- spent turns.
CREATE TYPE state.budget_entry AS (
    budget_id text, reserved_tokens bigint, spent_tokens bigint, unsettled_tokens bigint, beyond_tokens bigint,
    reserved_cost bigint, spent_cost bigint, unsettled_cost bigint, beyond_cost bigint, reserved_turns bigint,
    spent_turns bigint);
