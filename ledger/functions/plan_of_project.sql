-- payload.budget, without a grant, of the turns of a project that have no turn above them; null where nothing limits
-- them.
CREATE OR REPLACE FUNCTION state.plan_of_project(project text) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
               'tokens', coalesce(jsonb_agg(n.id ORDER BY n.id) FILTER (WHERE p.max_tokens IS NOT NULL), '[]'),
               'cost', coalesce(jsonb_agg(n.id ORDER BY n.id) FILTER (WHERE p.max_cost IS NOT NULL), '[]'),
               'turns', coalesce(jsonb_agg(n.id ORDER BY n.id) FILTER (WHERE p.max_turns IS NOT NULL), '[]'),
               'until', NULL, 'depth', 1)
    FROM state.project_budgets p
    CROSS JOIN LATERAL (SELECT p.project_id || '/' || p.period || '/' || to_char(
        now() AT TIME ZONE 'UTC', CASE p.period WHEN 'day' THEN 'YYYY-MM-DD' ELSE 'YYYY-MM' END) AS id) n
    WHERE p.project_id = project AND num_nonnulls(p.max_tokens, p.max_cost, p.max_turns) > 0
    HAVING count(*) > 0
$$;
