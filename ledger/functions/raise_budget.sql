-- Gives a budget more, or takes back what is free: more has max_tokens, max_cost, max_turns as differences, and may
-- name its request, which heard again changes nothing. A turn's grant takes it from where it came from. It runs with
-- the caller's rights: a worker has none to raise.
-- verdict: raised | unknown_budget | budget_closed | budget_unlimited (it has no limit of that dimension) |
-- budget_in_use (less than is spent and reserved) | budget_exceeded (what it came from has not so much left); detail
-- says of what.
CREATE OR REPLACE FUNCTION state.raise_budget(project text, budget text, more jsonb, caller text, OUT verdict text,
    OUT detail jsonb) LANGUAGE plpgsql AS $$
DECLARE
    b state.budgets;
    m record;
    rows state.budgets[];
    refused jsonb;
BEGIN
    SELECT nullif(x.max_tokens, 0) AS max_tokens, nullif(x.max_cost, 0) AS max_cost,
           nullif(x.max_turns, 0) AS max_turns, coalesce(x.request, gen_random_uuid()::text) AS request
    INTO m FROM jsonb_to_record(more) x (max_tokens bigint, max_cost bigint, max_turns bigint, request text);
    SELECT x.* INTO b FROM state.budgets x WHERE x.budget_id = budget AND x.project_id = project FOR NO KEY UPDATE;
    IF b.budget_id IS NULL THEN
        verdict := 'unknown_budget';
        RETURN;
    END IF;
    SELECT CASE WHEN (r.budget_id, r.max_tokens, r.max_cost, r.max_turns)
        IS NOT DISTINCT FROM (budget, m.max_tokens, m.max_cost, m.max_turns)
                THEN 'raised' ELSE 'correlation_conflict' END
    INTO verdict FROM state.budget_raises r WHERE r.correlation_id = m.request AND r.project_id = project;
    verdict := coalesce(verdict, CASE WHEN b.closed_at IS NOT NULL THEN 'budget_closed' END);
    IF verdict IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT x.code, to_jsonb(x) - 'code' INTO verdict, detail FROM (
        SELECT v.dimension, v.had, v.spent, v.reserved, v.asked,
               CASE WHEN v.had IS NULL THEN 'budget_unlimited' ELSE 'budget_in_use' END AS code
        FROM (VALUES ('tokens', b.max_tokens, b.spent_tokens, b.reserved_tokens, m.max_tokens),
                     ('cost', b.max_cost, b.spent_cost, b.reserved_cost, m.max_cost),
                     ('turns', b.max_turns, b.spent_turns, b.reserved_turns, m.max_turns)) v (dimension, had, spent,
                         reserved, asked)
        WHERE v.asked IS NOT NULL AND (v.had IS NULL OR (v.asked < 0 AND v.had + v.asked < v.spent + v.reserved))
        LIMIT 1) x;
    IF verdict IS NOT NULL THEN
        RETURN;
    END IF;
    -- what an open grant came from is open
    SELECT o.held INTO rows FROM state.open_budgets(true, CASE WHEN m.max_tokens <> 0 THEN b.from_tokens ELSE '{}' END,
        CASE WHEN m.max_cost <> 0 THEN b.from_cost ELSE '{}' END,
        CASE WHEN m.max_turns <> 0 THEN b.from_turns ELSE '{}' END) o;
    SELECT to_jsonb(v) INTO refused FROM unnest(rows) r CROSS JOIN LATERAL (
        VALUES ('tokens', r.budget_id, r.max_tokens, r.spent_tokens, r.reserved_tokens,
               CASE WHEN r.budget_id = ANY (b.from_tokens) THEN m.max_tokens END),
               ('cost', r.budget_id, r.max_cost, r.spent_cost, r.reserved_cost,
                   CASE WHEN r.budget_id = ANY (b.from_cost) THEN m.max_cost END),
               ('turns', r.budget_id, r.max_turns, r.spent_turns, r.reserved_turns,
                   CASE WHEN r.budget_id = ANY (b.from_turns) THEN m.max_turns END)
    ) v (dimension, budget_id, had, spent, reserved, asked)
    WHERE v.asked > 0 AND v.spent + v.reserved + v.asked > v.had LIMIT 1;
    IF refused IS NOT NULL THEN
        verdict := 'budget_exceeded';
        detail := refused;
        RETURN;
    END IF;
    INSERT INTO state.budget_raises (project_id, correlation_id, budget_id, max_tokens, max_cost, max_turns, raised_by)
    VALUES (project, m.request, budget, m.max_tokens, m.max_cost, m.max_turns, caller) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN  -- another budget was raised with the key meanwhile: the repeat finds it
        RAISE EXCEPTION 'the key of a raise was used meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
    UPDATE state.budgets x SET
        reserved_tokens = x.reserved_tokens + CASE WHEN x.budget_id = ANY (b.from_tokens) THEN coalesce(m.max_tokens, 0)
            ELSE 0 END,
        reserved_cost = x.reserved_cost + CASE WHEN x.budget_id = ANY (b.from_cost) THEN coalesce(m.max_cost, 0)
            ELSE 0 END,
        reserved_turns = x.reserved_turns + CASE WHEN x.budget_id = ANY (b.from_turns) THEN coalesce(m.max_turns, 0)
            ELSE 0 END
    WHERE x.budget_id IN (SELECT r.budget_id FROM unnest(rows) r);
    UPDATE state.budgets x SET max_tokens = x.max_tokens + coalesce(m.max_tokens, 0),
        max_cost = x.max_cost + coalesce(m.max_cost, 0),
        max_turns = x.max_turns + coalesce(m.max_turns, 0), warned_at = NULL, updated_at = clock_timestamp(),
        updated_by = caller
    WHERE x.budget_id = budget;
    verdict := 'raised';
END $$;
