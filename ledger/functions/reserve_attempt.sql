-- Reserves what an attempt at a model may use, before the request leaves: its input and the most that it may answer.
-- Behind the gate of the step, which a mark closes. What earlier attempts of the turn left open is booked whole until
-- their truth is known.
-- verdict: reserved | exhausted (dimension, and what of it the row had, spent, reserved, and what was wanted; seconds:
-- `until` is past) | unpriced (a cost is limited and the model has no price) | null (stale). The same attempt again
-- hears the same.
-- warned: the first limit of which the reservation passes the soft limit: budget_id, dimension, percent, spent,
-- reserved, max.
CREATE OR REPLACE FUNCTION state.reserve_attempt(
    project text, agent text, turn text, epoch bigint, of_step integer, of_attempt integer, of_model text,
    input_tokens bigint, max_output bigint, OUT verdict text, OUT dimension text, OUT budget_id text, OUT had bigint,
    OUT spent bigint, OUT reserved bigint, OUT wanted bigint, OUT until timestamptz, OUT warned jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    budget jsonb;
    known text;
    stale jsonb;
    at_tokens text[];
    at_cost text[];
    at_turns text[] := '{}';
    rows state.budgets[];
    wants_tokens bigint := state.as_amount(input_tokens::numeric + max_output);
    wants_cost bigint;
    short record;
BEGIN
    SELECT coalesce(i.payload -> 'budget', '{}') INTO budget
    FROM state.agent_state_head h JOIN state.agent_inbox i ON i.inbox_id = h.active_inbox_id
    WHERE h.agent_id = agent AND h.project_id = project AND h.active_agent_turn_id = turn AND h.turn_epoch = epoch
      AND h.status = 'running' AND h.step_count = of_step - 1
    FOR NO KEY UPDATE OF h;
    IF NOT FOUND OR state.is_marked(turn) THEN
        RETURN;
    END IF;
    until := (budget ->> 'until')::timestamptz;
    SELECT x.of_this, x.others INTO known, stale FROM (
        SELECT max(r.status) FILTER (WHERE r.step = of_step AND r.attempt = of_attempt) AS of_this,
               jsonb_agg(jsonb_build_object('step', r.step, 'attempt', r.attempt)) FILTER (
                   WHERE r.status = 'open' AND (r.step, r.attempt) <> (of_step, of_attempt)) AS others
        FROM state.budget_reservations r WHERE r.agent_turn_id = turn) x;
    IF known IS NOT NULL THEN
        verdict := 'reserved';
        RETURN;
    END IF;
    IF stale IS NOT NULL THEN
        PERFORM state.book_budgets(state.settle_attempts(turn, stale));
    END IF;
    IF until <= clock_timestamp() THEN
        verdict := 'exhausted';
        dimension := 'seconds';
        RETURN;
    END IF;
    at_tokens := state.text_list(budget -> 'tokens');
    at_cost := state.text_list(budget -> 'cost');
    IF cardinality(at_tokens) = 0 AND cardinality(at_cost) = 0 THEN
        verdict := 'reserved';
        RETURN;
    END IF;
    SELECT state.as_amount(p.input_per_million * input_tokens + p.output_per_million * max_output) INTO wants_cost
    FROM state.model_prices p WHERE p.model = of_model;
    SELECT o.tokens, o.cost, o.held INTO at_tokens, at_cost, rows
    FROM state.open_budgets(true, at_tokens, at_cost, at_turns) o;
    IF wants_cost IS NULL AND EXISTS (SELECT FROM unnest(rows) b
        WHERE b.budget_id = ANY (at_cost) AND b.max_cost IS NOT NULL) THEN
        verdict := 'unpriced';
        RETURN;
    END IF;
    wants_cost := coalesce(wants_cost, 0);
    SELECT x.* INTO short FROM unnest(rows) b CROSS JOIN LATERAL (VALUES
        ('tokens', b.budget_id, b.budget_id = ANY (at_tokens), b.max_tokens, b.spent_tokens, b.reserved_tokens,
            wants_tokens),
        ('cost', b.budget_id, b.budget_id = ANY (at_cost), b.max_cost, b.spent_cost, b.reserved_cost, wants_cost)
    ) x (dimension, budget_id, charged, had, spent, reserved, wanted)
    WHERE x.charged AND x.spent + x.reserved + x.wanted > x.had
    ORDER BY x.dimension DESC, x.had - x.spent - x.reserved LIMIT 1;
    IF FOUND THEN
        verdict := 'exhausted';
        dimension := short.dimension;
        budget_id := short.budget_id;
        had := short.had;
        spent := short.spent;
        reserved := short.reserved;
        wanted := short.wanted;
        RETURN;
    END IF;
    verdict := 'reserved';
    SELECT jsonb_build_object('budget_id', x.budget_id, 'dimension', x.dimension, 'percent', x.percent, 'spent',
                              x.spent, 'reserved', x.reserved, 'max', x.had) INTO warned
    FROM unnest(rows) b CROSS JOIN LATERAL (VALUES
        ('tokens', b.budget_id, b.budget_id = ANY (at_tokens), b.max_tokens, b.spent_tokens,
            b.reserved_tokens + wants_tokens, b.warn_percent),
        ('cost', b.budget_id, b.budget_id = ANY (at_cost), b.max_cost, b.spent_cost, b.reserved_cost + wants_cost,
            b.warn_percent)
    ) x (dimension, budget_id, charged, had, spent, reserved, percent)
    WHERE b.warned_at IS NULL AND x.charged AND (x.spent + x.reserved)::numeric * 100 >= x.had::numeric * x.percent
    ORDER BY b.depth DESC, x.dimension DESC LIMIT 1;
    UPDATE state.budgets b SET
        reserved_tokens = b.reserved_tokens + CASE WHEN b.budget_id = ANY (at_tokens) THEN wants_tokens ELSE 0 END,
        reserved_cost = b.reserved_cost + CASE WHEN b.budget_id = ANY (at_cost) THEN wants_cost ELSE 0 END,
        warned_at = CASE WHEN b.budget_id = warned ->> 'budget_id' THEN clock_timestamp() ELSE b.warned_at END
    WHERE b.budget_id = ANY (at_tokens || at_cost);
    INSERT INTO state.budget_reservations (agent_turn_id, step, attempt, project_id, model, tokens, cost, tokens_at,
        cost_at)
    VALUES (turn, of_step, of_attempt, project, of_model, wants_tokens, wants_cost, at_tokens, at_cost);
END $$;
