-- Records what a step of a call has come to, once for each key, or looks for it where `recorded` is null. recorded:
-- value, bytes; model, tokens, of these written, and cost (micro-dollars) of what a model used, which is booked against
-- the turn's budget: what of it no reservation would have got is beyond. Behind the lock of the turn's head.
-- verdict: recorded | duplicate (the value is what was recorded first, whatever became of the call since) | absent (it
-- may run) | unknown_call | parent_over | parent_stopping | not_sent | too_many_steps | budget_exhausted (of a look).
-- The owner books. Lock order: protocol §12, then budgets.
CREATE OR REPLACE FUNCTION state.step_of_call(project text, call text, step_key text, recorded jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    h state.agent_state_head;
    w state.turn_waiting_tools;
    s state.call_steps;
    refused text;
    budget jsonb;
    channel text;
    at_tokens text[] := '{}';
    at_cost text[] := '{}';
    at_turns text[] := '{}';
    rows state.budgets[];
    used_tokens bigint := state.as_amount((recorded ->> 'tokens')::numeric);
    used_cost bigint := state.as_amount((recorded ->> 'cost')::numeric);
    had_tokens bigint;
    had_cost bigint;
    of_step integer;
    of_attempt integer;
    steps integer;
    size bigint;
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('verdict', 'unknown_call');
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x
    WHERE x.agent_id = w.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    SELECT x.* INTO s FROM state.call_steps x
    WHERE x.tool_call_id = call AND x.project_id = project AND x.key = step_key;
    IF FOUND THEN
        RETURN jsonb_build_object('verdict', 'duplicate', 'value', s.value);
    END IF;
    SELECT x.* INTO w FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    refused := state.refused_under_call(w, h);
    IF refused IS NOT NULL THEN
        RETURN jsonb_build_object('verdict', refused);
    END IF;
    SELECT count(*), coalesce(sum(x.bytes), 0) INTO steps, size FROM state.call_steps x
    WHERE x.tool_call_id = call AND x.project_id = project;
    IF steps >= 1000 OR size + coalesce((recorded ->> 'bytes')::int, 1) > 16777216 THEN
        RETURN jsonb_build_object('verdict', 'too_many_steps');
    END IF;
    SELECT i.payload -> 'budget', i.channel_id INTO budget, channel FROM state.agent_inbox i
    WHERE i.inbox_id = h.active_inbox_id;
    IF budget IS NOT NULL THEN
        SELECT o.tokens, o.cost, o.held INTO at_tokens, at_cost, rows
        FROM state.open_budgets(used_tokens IS NOT NULL, state.text_list(budget -> 'tokens'),
                                state.text_list(budget -> 'cost'), at_turns) o;
        SELECT min(b.max_tokens - b.spent_tokens - b.reserved_tokens) FILTER (WHERE b.budget_id = ANY (at_tokens)),
               min(b.max_cost - b.spent_cost - b.reserved_cost) FILTER (WHERE b.budget_id = ANY (at_cost))
        INTO had_tokens, had_cost FROM unnest(rows) b;
    END IF;
    IF recorded IS NULL THEN
        RETURN jsonb_build_object('verdict', CASE
            WHEN had_tokens <= 0 OR had_cost <= 0 OR (budget ->> 'until')::timestamptz <= clock_timestamp()
            THEN 'budget_exhausted' ELSE 'absent' END);
    END IF;
    IF used_tokens IS NOT NULL AND cardinality(at_tokens || at_cost) > 0 THEN
        of_step := coalesce(state.as_count(substring(w.step_id FROM '-s([0-9]+)$')), 0);
        SELECT coalesce(max(r.attempt), 1000000) + 1 INTO of_attempt FROM state.budget_reservations r
        WHERE r.agent_turn_id = w.agent_turn_id AND r.step = of_step AND r.attempt > 1000000;
        had_tokens := greatest(least(used_tokens, had_tokens), 0);
        had_cost := greatest(least(used_cost, had_cost), 0);
        UPDATE state.budgets b SET
            reserved_tokens = b.reserved_tokens + CASE WHEN b.budget_id = ANY (at_tokens) THEN had_tokens ELSE 0 END,
            reserved_cost = b.reserved_cost + CASE WHEN b.budget_id = ANY (at_cost) THEN had_cost ELSE 0 END
        WHERE b.budget_id = ANY (at_tokens || at_cost);
        INSERT INTO state.budget_reservations (agent_turn_id, step, attempt, project_id, model, tokens, cost, tokens_at,
            cost_at)
        VALUES (w.agent_turn_id, of_step, of_attempt, project, recorded ->> 'model', had_tokens, had_cost, at_tokens,
            at_cost);
        PERFORM state.book_budgets(state.settle_attempts(w.agent_turn_id, jsonb_build_array(jsonb_build_object(
            'step', of_step, 'attempt', of_attempt, 'tokens', used_tokens, 'cost', used_cost))));
    END IF;
    INSERT INTO state.call_steps (project_id, agent_id, agent_turn_id, step_id, channel_id, tool_call_id, key, seq,
        value, bytes, model, tokens, written, cost, attempt)
    VALUES (project, w.agent_id, w.agent_turn_id, w.step_id, coalesce(channel, 'public'), call, step_key, steps + 1,
        recorded -> 'value', (recorded ->> 'bytes')::int, recorded ->> 'model', used_tokens,
        CASE WHEN used_tokens IS NOT NULL THEN coalesce((recorded ->> 'written')::bigint, 0) END, used_cost,
        of_attempt);
    RETURN jsonb_build_object('verdict', 'recorded', 'value', recorded -> 'value');
END $$;
