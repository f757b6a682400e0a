-- Which of these turns cannot have what they ask for, as of these rows, in order: one that is refused takes nothing
-- from those after it.
-- plans: payload.budget of each, all of one parent. refusal: dimension, budget_id, had, spent, reserved, asked, left.
CREATE OR REPLACE FUNCTION state.refused_grants(rows state.budgets[], at_tokens text[], at_cost text[], at_turns text[],
    plans jsonb[])
RETURNS TABLE (place integer, refusal jsonb) LANGUAGE plpgsql AS $$
DECLARE
    rest_tokens bigint := (SELECT min(b.max_tokens - b.spent_tokens - b.reserved_tokens) FROM unnest(rows) b
        WHERE b.budget_id = ANY (at_tokens));
    rest_cost bigint := (SELECT min(b.max_cost - b.spent_cost - b.reserved_cost) FROM unnest(rows) b
        WHERE b.budget_id = ANY (at_cost));
    rest_turns bigint := (SELECT min(b.max_turns - b.spent_turns - b.reserved_turns) FROM unnest(rows) b
        WHERE b.budget_id = ANY (at_turns));
    spent_out text := (  -- of what is spent for good no turn gets anything, whatever it asks for
        SELECT x.dimension FROM unnest(rows) b CROSS JOIN LATERAL (VALUES
            ('tokens', b.budget_id = ANY (at_tokens) AND b.spent_tokens >= b.max_tokens),
            ('cost', b.budget_id = ANY (at_cost) AND b.spent_cost >= b.max_cost
                AND b.max_cost > 0)) x (dimension, is_out)
        WHERE x.is_out LIMIT 1);
    wants_tokens bigint;
    wants_cost bigint;
    wants_turns bigint;
    short text;
BEGIN
    FOR i IN 1 .. cardinality(plans) LOOP
        wants_tokens := coalesce((plans[i] #>> '{grant,max_tokens}')::bigint, 0);
        wants_cost := coalesce((plans[i] #>> '{grant,max_cost}')::bigint, 0);
        wants_turns := coalesce((plans[i] #>> '{grant,max_turns}')::bigint, 1);
        place := i;
        IF wants_turns = 0 THEN  -- its own turn is one
            refusal := jsonb_build_object('dimension', 'turns', 'budget_id', NULL, 'had', 0, 'spent', 0, 'reserved', 0,
                'asked', 1, 'left', 0);
            RETURN NEXT;
            CONTINUE;
        END IF;
        short := CASE WHEN wants_tokens > 0 AND wants_tokens > rest_tokens THEN 'tokens'
            WHEN wants_cost > 0 AND wants_cost > rest_cost THEN 'cost'
                      WHEN wants_turns > rest_turns THEN 'turns' ELSE spent_out END;
        IF short IS NULL THEN
            rest_tokens := rest_tokens - wants_tokens;
            rest_cost := rest_cost - wants_cost;
            rest_turns := rest_turns - wants_turns;
            CONTINUE;
        END IF;
        SELECT jsonb_build_object('dimension', short, 'budget_id', x.budget_id, 'had', x.had, 'spent', x.spent,
                                  'reserved', x.reserved, 'asked', x.asked, 'left', greatest(x.rest, 0)) INTO refusal
        FROM unnest(rows) b CROSS JOIN LATERAL (VALUES
            ('tokens', b.budget_id = ANY (at_tokens), b.budget_id, b.max_tokens, b.spent_tokens, b.reserved_tokens,
                wants_tokens, rest_tokens),
            ('cost', b.budget_id = ANY (at_cost), b.budget_id, b.max_cost, b.spent_cost, b.reserved_cost, wants_cost,
                rest_cost),
            ('turns', b.budget_id = ANY (at_turns), b.budget_id, b.max_turns, b.spent_turns, b.reserved_turns,
                wants_turns, rest_turns)
        ) x (dimension, charged, budget_id, had, spent, reserved, asked, rest)
        WHERE x.dimension = short AND x.charged AND x.had IS NOT NULL ORDER BY x.had - x.spent - x.reserved LIMIT 1;
        RETURN NEXT;
    END LOOP;
END $$;
