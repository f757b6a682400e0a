-- Budgets (protocol §15): statements that reserve, raise and limit. Charging an enqueue and settling are triggers.

-- name: reserve_attempt :one
-- Reserves what an attempt at a model may use, behind the gate of its step: reserved | exhausted | unpriced; null:
-- stale. With the model's price, by which its cost is computed if the provider reports none.
SELECT r.*, p.input_per_million, p.output_per_million, p.cached_input_per_million, p.max_output_tokens
FROM state.reserve_attempt(:project_id, :agent_id, :agent_turn_id, :turn_epoch::bigint,
                           :step::int, :attempt::int, :model::text,
                           :input_tokens::bigint, :max_tokens::bigint) r
LEFT JOIN state.model_prices p ON p.model = :model::text;

-- name: raise_budget :one
-- Gives a budget more, or takes back what is free.
SELECT r.verdict, r.detail FROM state.raise_budget(:project_id, :budget_id, :more::jsonb, :caller) r;

-- name: limit_project :one
-- Sets what the turns of a project may spend in a day or month; returns the budget of this day or month.
SELECT state.limit_project(:project_id, :period, :limits::jsonb, :caller) AS budget_id;
