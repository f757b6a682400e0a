-- Which children of one turn cannot have what they ask for, without a lock: plans as in charge_turns, in the order of
-- their tasks.
CREATE OR REPLACE FUNCTION state.judge_children(plans jsonb) RETURNS TABLE (agent_turn_id text, refusal jsonb)
LANGUAGE sql STABLE AS $$
    SELECT plans -> (r.place - 1) ->> 'agent_turn_id', r.refusal
    FROM (SELECT ARRAY(SELECT p -> 'budget' FROM jsonb_array_elements(plans) WITH ORDINALITY x (p, place)
        ORDER BY place) AS budgets) b
    CROSS JOIN LATERAL (SELECT coalesce(b.budgets[1] #> '{grant,from}', b.budgets[1]) AS above) a
    CROSS JOIN LATERAL state.open_budgets(false, state.text_list(a.above -> 'tokens'),
                                          state.text_list(a.above -> 'cost'), state.text_list(a.above -> 'turns')) o
    CROSS JOIN LATERAL state.refused_grants(o.held, o.tokens, o.cost, o.turns, b.budgets) r
$$;
