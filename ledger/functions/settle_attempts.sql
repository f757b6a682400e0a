-- What attempts at a model of a turn have used, as entries for book_budgets: uses is an array of {step, attempt,
-- tokens, cost}, null for what nobody knows, which is booked whole. The truth about an attempt that was booked whole
-- corrects that; what is known stays.
CREATE OR REPLACE FUNCTION state.settle_attempts(turn text, uses jsonb, of_step integer DEFAULT NULL)
RETURNS state.budget_entry[] LANGUAGE plpgsql AS $$
DECLARE
    entries state.budget_entry[] := '{}';
    u jsonb;
    r state.budget_reservations;
    was_open boolean;
    now_tokens bigint;
    now_cost bigint;
    id text;
    t state.budget_entry;
    c state.budget_entry;
BEGIN
    FOR u IN SELECT jsonb_array_elements(uses) LOOP
        SELECT x.* INTO r FROM state.budget_reservations x
        WHERE x.agent_turn_id = turn AND x.step = coalesce((u ->> 'step')::int, of_step)
          AND x.attempt = (u ->> 'attempt')::int;
        was_open := r.status = 'open';
        now_tokens := coalesce(r.used_tokens, state.as_amount((u ->> 'tokens')::numeric));
        now_cost := coalesce(r.used_cost, state.as_amount((u ->> 'cost')::numeric));
        CONTINUE WHEN r.status IS NULL OR (NOT was_open AND (now_tokens, now_cost)
            IS NOT DISTINCT FROM (r.used_tokens, r.used_cost));
        UPDATE state.budget_reservations x SET used_tokens = now_tokens, used_cost = now_cost,
               settled_at = clock_timestamp(),
               status = CASE WHEN now_tokens IS NULL OR now_cost IS NULL THEN 'unsettled'
                   WHEN now_tokens = 0 AND now_cost = 0 THEN 'released' ELSE 'settled' END
        WHERE x.agent_turn_id = turn AND x.step = r.step AND x.attempt = r.attempt;
        -- each figure after, less what it was before
        t := (NULL, CASE WHEN was_open THEN -r.tokens ELSE 0 END,
              coalesce(now_tokens, r.tokens) - CASE WHEN was_open THEN 0 ELSE coalesce(r.used_tokens, r.tokens) END,
              CASE WHEN now_tokens IS NULL THEN r.tokens ELSE 0 END - CASE
                  WHEN NOT was_open AND r.used_tokens IS NULL THEN r.tokens ELSE 0 END,
              greatest(now_tokens - r.tokens, 0) - CASE WHEN was_open THEN 0
                  ELSE greatest(r.used_tokens - r.tokens, 0) END, 0, 0, 0, 0, 0, 0);
        c := (NULL, 0, 0, 0, 0, CASE WHEN was_open THEN -r.cost ELSE 0 END,
              coalesce(now_cost, r.cost) - CASE WHEN was_open THEN 0 ELSE coalesce(r.used_cost, r.cost) END,
              CASE WHEN now_cost IS NULL THEN r.cost ELSE 0 END - CASE
                  WHEN NOT was_open AND r.used_cost IS NULL THEN r.cost ELSE 0 END,
              greatest(now_cost - r.cost, 0) - CASE WHEN was_open THEN 0 ELSE greatest(r.used_cost - r.cost, 0) END, 0,
              0);
        IF r.tokens_at = r.cost_at THEN
            c.reserved_tokens := t.reserved_tokens;
            c.spent_tokens := t.spent_tokens;
            c.unsettled_tokens := t.unsettled_tokens;
            c.beyond_tokens := t.beyond_tokens;
        ELSE
            FOREACH id IN ARRAY r.tokens_at LOOP
                t.budget_id := id;
                entries := entries || t;
            END LOOP;
        END IF;
        FOREACH id IN ARRAY r.cost_at LOOP
            c.budget_id := id;
            entries := entries || c;
        END LOOP;
    END LOOP;
    RETURN entries;
END $$;
