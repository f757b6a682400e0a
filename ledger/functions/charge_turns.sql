-- Charges turns of one parent that are being enqueued: makes the rows of their own grants, reserves these where they
-- come from, and counts the turns. plans: an array of {agent_turn_id, budget}, budget being payload.budget. Null, or
-- why one of them cannot have it: then nothing is written.
CREATE OR REPLACE FUNCTION state.charge_turns(project text, channel text, plans jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    budgets jsonb[] := ARRAY(SELECT p -> 'budget' FROM jsonb_array_elements(plans) WITH ORDINALITY x (p, place)
        ORDER BY place);
    above jsonb := coalesce(budgets[1] #> '{grant,from}', budgets[1]);
    at_tokens text[] := state.text_list(above -> 'tokens');
    at_cost text[] := state.text_list(above -> 'cost');
    at_turns text[] := state.text_list(above -> 'turns');
    rows state.budgets[];
    refused jsonb;
BEGIN
    -- The first turn of a day or month makes its row.
    INSERT INTO state.budgets (budget_id, project_id, kind, depth, max_tokens, max_cost, max_turns)
    SELECT x.id, project, p.kind, CASE p.kind WHEN 'month' THEN 0 ELSE 1 END, l.max_tokens, l.max_cost, l.max_turns
    FROM (SELECT DISTINCT u.id FROM unnest(at_tokens || at_cost || at_turns) u (id) WHERE u.id LIKE '%/%') x
    CROSS JOIN LATERAL (SELECT split_part(x.id, '/', 2) AS kind) p
    LEFT JOIN state.project_budgets l ON l.project_id = project AND l.period = p.kind
    WHERE NOT EXISTS (SELECT FROM state.budgets b WHERE b.budget_id = x.id) ORDER BY p.kind
    ON CONFLICT DO NOTHING;
    SELECT o.tokens, o.cost, o.turns, o.held INTO at_tokens, at_cost, at_turns, rows
    FROM state.open_budgets(true, at_tokens, at_cost, at_turns) o;
    SELECT r.refusal INTO refused FROM state.refused_grants(rows, at_tokens, at_cost, at_turns, budgets) r LIMIT 1;
    IF refused IS NOT NULL THEN
        RETURN refused;
    END IF;
    INSERT INTO state.budgets (budget_id, project_id, channel_id, kind, agent_turn_id, depth, max_tokens, max_cost,
                               max_turns, spent_turns, from_tokens, from_cost, from_turns, until, warn_percent)
    SELECT x.agent_turn_id, project, channel, 'turn', x.agent_turn_id, (x.budget ->> 'depth')::int, g.max_tokens,
           g.max_cost, g.max_turns,
           CASE WHEN g.max_turns IS NULL THEN 0 ELSE 1 END, CASE WHEN g.max_tokens IS NULL THEN '{}' ELSE at_tokens END,
           CASE WHEN g.max_cost IS NULL THEN '{}' ELSE at_cost END,
           CASE WHEN g.max_turns IS NULL THEN '{}' ELSE at_turns END, (x.budget ->> 'until')::timestamptz,
           coalesce(g.warn_percent, 80)
    FROM jsonb_to_recordset(plans) x (agent_turn_id text, budget jsonb)
    CROSS JOIN LATERAL jsonb_to_record(x.budget -> 'grant') g (max_tokens bigint, max_cost bigint, max_turns bigint,
        warn_percent int)
    WHERE x.budget ? 'grant';
    UPDATE state.budgets b SET
        reserved_tokens = b.reserved_tokens + CASE WHEN b.budget_id = ANY (at_tokens) THEN t.tokens ELSE 0 END,
        reserved_cost = b.reserved_cost + CASE WHEN b.budget_id = ANY (at_cost) THEN t.cost ELSE 0 END,
        reserved_turns = b.reserved_turns + CASE WHEN b.budget_id = ANY (at_turns) THEN t.granted_turns ELSE 0 END,
        spent_turns = b.spent_turns + CASE WHEN b.budget_id = ANY (at_turns) THEN t.turns ELSE 0 END
    FROM (
        SELECT coalesce(sum((x #>> '{grant,max_tokens}')::bigint), 0) AS tokens,
               coalesce(sum((x #>> '{grant,max_cost}')::bigint), 0) AS cost,
               coalesce(sum((x #>> '{grant,max_turns}')::bigint), 0) AS granted_turns,
               count(*) FILTER (WHERE x #>> '{grant,max_turns}' IS NULL) AS turns
        FROM unnest(budgets) x) t
    WHERE b.budget_id IN (SELECT r.budget_id FROM unnest(rows) r);
    RETURN NULL;
END $$;
