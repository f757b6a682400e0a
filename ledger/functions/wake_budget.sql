-- What the turn of a wake_me may spend, as fields of an enqueue (protocol §20): of the budget of the tree's root. As
-- long as that is open it is charged like a child (`purse`, as payload.budget of the turn that asks); once it is
-- closed, what is left of it, less what other wakes of the root got since, is the limit of its own (`budget`).
CREATE OR REPLACE FUNCTION state.wake_budget(project text, root text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    b state.budgets;
    later record;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('wake_budget/' || root, 0));
    SELECT x.* INTO b FROM state.budgets x WHERE x.budget_id = root;
    IF b.budget_id IS NULL THEN
        RETURN '{}';
    END IF;
    IF b.closed_at IS NULL THEN
        RETURN jsonb_build_object('purse', coalesce(
            state.plan_of_project(project), '{"tokens": [], "cost": [], "turns": []}') || jsonb_strip_nulls(
            jsonb_build_object(
                'tokens', CASE WHEN b.max_tokens IS NOT NULL THEN jsonb_build_array(root) END,
                'cost', CASE WHEN b.max_cost IS NOT NULL THEN jsonb_build_array(root) END,
                'turns', CASE WHEN b.max_turns IS NOT NULL THEN jsonb_build_array(root) END,
                'until', b.until, 'depth', b.depth)));
    END IF;
    SELECT coalesce(sum(CASE WHEN g.closed_at IS NULL THEN g.max_tokens ELSE g.spent_tokens END), 0) AS tokens,
           coalesce(sum(CASE WHEN g.closed_at IS NULL THEN g.max_cost ELSE g.spent_cost END), 0) AS cost,
           coalesce(sum(CASE WHEN g.closed_at IS NULL THEN g.max_turns ELSE g.spent_turns END), 0) AS turns
    INTO later FROM resource.schedules s
    JOIN state.schedule_firings f ON f.project_id = s.project_id AND f.schedule_id = s.schedule_id
    JOIN state.budgets g ON g.budget_id = f.agent_turn_id
    WHERE s.root_turn_id = root AND s.project_id = project
      AND root <> ALL (g.from_tokens || g.from_cost || g.from_turns);
    RETURN jsonb_build_object('budget', jsonb_strip_nulls(jsonb_build_object(
        'max_tokens', greatest(b.max_tokens - b.spent_tokens - later.tokens, CASE WHEN b.max_tokens >= 0 THEN 0 END),
        'max_cost', greatest(b.max_cost - b.spent_cost - later.cost, CASE WHEN b.max_cost >= 0 THEN 0 END),
        'max_turns', greatest(b.max_turns - b.spent_turns - later.turns, CASE WHEN b.max_turns >= 0 THEN 0 END),
        'max_seconds', greatest(extract(epoch FROM b.until - clock_timestamp()),
                                CASE WHEN b.until IS NOT NULL THEN 0 END))));
END $$;
