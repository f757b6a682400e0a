-- Sets what the turns of a project may spend together in a day or month, and what those of this day or month may; null:
-- nothing limits them. Where more is spent and reserved already, nothing more is given.
CREATE OR REPLACE FUNCTION state.limit_project(project text, for_period text, limits jsonb, caller text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    m record;
    budget text := project || '/' || for_period || '/' || to_char(
        now() AT TIME ZONE 'UTC', CASE for_period WHEN 'day' THEN 'YYYY-MM-DD' ELSE 'YYYY-MM' END);
BEGIN
    SELECT x.* INTO m FROM jsonb_to_record(coalesce(nullif(limits, 'null'), '{}')) x (max_tokens bigint,
        max_cost bigint, max_turns bigint);
    UPDATE state.project_budgets p SET max_tokens = m.max_tokens, max_cost = m.max_cost, max_turns = m.max_turns,
        updated_at = now(), updated_by = caller
    WHERE p.project_id = project AND p.period = for_period;
    IF NOT FOUND THEN  -- of two at once the second one is repeated
        INSERT INTO state.project_budgets (project_id, period, max_tokens, max_cost, max_turns, updated_by)
        VALUES (project, for_period, m.max_tokens, m.max_cost, m.max_turns, caller);
    END IF;
    UPDATE state.budgets b SET max_tokens = m.max_tokens, max_cost = m.max_cost, max_turns = m.max_turns,
        warned_at = NULL,
        updated_at = clock_timestamp(), updated_by = caller, lowered_at = CASE
            WHEN b.spent_tokens + b.reserved_tokens > m.max_tokens OR b.spent_cost + b.reserved_cost > m.max_cost
                 OR b.spent_turns + b.reserved_turns > m.max_turns THEN clock_timestamp() ELSE b.lowered_at END
    WHERE b.budget_id = budget;
    IF NOT FOUND THEN
        INSERT INTO state.budgets (budget_id, project_id, kind, depth, max_tokens, max_cost, max_turns, updated_by)
        VALUES (budget, project, for_period, CASE for_period WHEN 'month' THEN 0 ELSE 1 END, m.max_tokens, m.max_cost,
            m.max_turns, caller);
    END IF;
    RETURN budget;
END $$;
