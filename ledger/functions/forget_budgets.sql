-- Removes what was booked for these turns, which are being removed. What rows that stay were charged for them is past
-- from now on.
CREATE OR REPLACE FUNCTION state.forget_budgets(ids text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    gone jsonb;
BEGIN
    WITH reservations AS (
        DELETE FROM state.budget_reservations r WHERE r.agent_turn_id = ANY (ids)
        RETURNING r.tokens_at, r.cost_at, coalesce(r.used_tokens, r.tokens) AS tokens,
            coalesce(r.used_cost, r.cost) AS cost
    ),
    grants AS (
        DELETE FROM state.budgets b WHERE b.budget_id = ANY (ids)
        RETURNING b.from_tokens, b.from_cost, b.from_turns, b.spent_tokens, b.spent_cost, b.spent_turns
    ),
    charged AS (
        SELECT t.id, r.tokens, 0::bigint AS cost, 0::bigint AS turns FROM reservations r
        CROSS JOIN unnest(r.tokens_at) t (id)
        UNION ALL SELECT t.id, 0, r.cost, 0 FROM reservations r CROSS JOIN unnest(r.cost_at) t (id)
        UNION ALL SELECT t.id, g.spent_tokens, 0, 0 FROM grants g CROSS JOIN unnest(g.from_tokens) t (id)
        UNION ALL SELECT t.id, 0, g.spent_cost, 0 FROM grants g CROSS JOIN unnest(g.from_cost) t (id)
        UNION ALL SELECT t.id, 0, 0, g.spent_turns FROM grants g CROSS JOIN unnest(g.from_turns) t (id)
    )
    SELECT jsonb_object_agg(x.id, x.sums) INTO gone FROM (
        SELECT c.id, jsonb_build_object('tokens', sum(c.tokens), 'cost', sum(c.cost), 'turns', sum(c.turns)) AS sums
        FROM charged c WHERE c.id <> ALL (ids) GROUP BY c.id) x;
    IF gone IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM FROM (
        SELECT b.budget_id FROM state.budgets b WHERE b.budget_id IN (SELECT jsonb_object_keys(gone))
        ORDER BY b.depth DESC, b.budget_id FOR NO KEY UPDATE) held;
    UPDATE state.budgets b SET past_tokens = b.past_tokens + (g.value ->> 'tokens')::bigint,
           past_cost = b.past_cost + (g.value ->> 'cost')::bigint,
           past_turns = b.past_turns + (g.value ->> 'turns')::bigint
    FROM jsonb_each(gone) g WHERE b.budget_id = g.key;
    RETURN 1;
END $$;
