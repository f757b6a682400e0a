-- Of each limit the smallest that one of these budgets has; null if none has any.
CREATE OR REPLACE FUNCTION state.least_budget(VARIADIC budgets jsonb[]) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_object_agg(x.name, x.least) FROM (
        SELECT e.key AS name, min(e.value::numeric) AS least FROM unnest(budgets) b (budget)
        CROSS JOIN LATERAL jsonb_each_text(CASE jsonb_typeof(b.budget) WHEN 'object' THEN b.budget ELSE '{}' END) e
        WHERE e.value IS NOT NULL GROUP BY e.key) x
$$;
