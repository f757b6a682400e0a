-- Removes all rows of these turns: outcome, inbox rows, calls and their steps, questions, steps, steers, wakes, node,
-- receivers of notifications, batches with their tasks, what was booked for them, and the edges that ask for or answer
-- them.
-- Skips locked turns, and those that have a child which is not over: its end locks batch and call in another order.
-- The turns' cards stay as long as their boxes, and what they cost stays in past_costs. Nothing else removes turns.
CREATE OR REPLACE FUNCTION state.remove_turns(ids text[]) RETURNS TABLE (id text) LANGUAGE sql AS $$
    WITH
    gone AS (
        DELETE FROM state.turn_outcomes o USING (
            SELECT x.agent_turn_id FROM state.turn_outcomes x WHERE x.agent_turn_id = ANY (ids)
              AND NOT EXISTS (SELECT FROM state.pmo_batches b WHERE b.parent_agent_turn_id = x.agent_turn_id
                                AND (b.status = 'running' OR b.open_count > 0) OFFSET 0)
            ORDER BY x.agent_turn_id FOR UPDATE SKIP LOCKED) free
        WHERE o.agent_turn_id = free.agent_turn_id
        RETURNING o.agent_turn_id, o.project_id
    ),
    waiting AS (
        DELETE FROM state.turn_waiting_tools w USING gone
        WHERE w.agent_turn_id = gone.agent_turn_id AND w.project_id = gone.project_id
        RETURNING w.agent_turn_id, w.project_id, w.tool_call_id AS correlation_id
    ),
    inbox AS (
        DELETE FROM state.agent_inbox i USING gone
        WHERE i.agent_turn_id = gone.agent_turn_id AND i.project_id = gone.project_id
        RETURNING i.agent_turn_id, i.project_id, i.correlation_id
    ),
    steps AS (
        DELETE FROM state.agent_steps s USING gone
        WHERE s.agent_turn_id = gone.agent_turn_id AND s.project_id = gone.project_id
        RETURNING s.agent_turn_id, s.project_id, coalesce(s.channel_id, 'public') AS channel_id,
                  (s.started_at AT TIME ZONE 'UTC')::date AS day, s.metadata -> 'attempts' AS attempts
    ),
    call_steps AS (
        DELETE FROM state.call_steps c USING gone
        WHERE c.agent_turn_id = gone.agent_turn_id AND c.project_id = gone.project_id
        RETURNING c.agent_turn_id, c.project_id, c.channel_id, (c.created_at AT TIME ZONE 'UTC')::date AS day, c.model,
                  c.tokens, c.written, c.cost
    ),
    attempts AS (
        SELECT x.*, row_number() OVER (PARTITION BY x.agent_turn_id ORDER BY x.day) = 1 AS is_first FROM (
            SELECT s.agent_turn_id, s.project_id, s.channel_id, s.day,
                   coalesce(a.attempt ->> 'model', 'unknown') AS model,
                   coalesce(a.attempt ->> 'error_code' <> 'canceled', false) AS failed,
                   coalesce(state.as_count(a.attempt #>> '{usage,prompt_tokens}'), 0) AS prompt_tokens,
                   coalesce(state.as_count(a.attempt #>> '{usage,completion_tokens}'), 0) AS completion_tokens,
                   CASE jsonb_typeof(a.attempt -> 'response_cost')
                       WHEN 'number' THEN (a.attempt ->> 'response_cost')::numeric END AS cost
            FROM steps s CROSS JOIN LATERAL jsonb_array_elements(
                CASE jsonb_typeof(s.attempts) WHEN 'array' THEN s.attempts ELSE '[]' END) a (attempt)
            UNION ALL
            SELECT c.agent_turn_id, c.project_id, c.channel_id, c.day, c.model, false, c.tokens - c.written, c.written,
                   c.cost / 1000000.0
            FROM call_steps c WHERE c.model IS NOT NULL) x
    ),
    costs AS (  -- a turn counts on the day of its first step
        INSERT INTO state.past_costs AS p (project_id, channel_id, day, model, turns, attempts, failed_attempts,
                                           prompt_tokens, completion_tokens, cost)
        SELECT a.project_id, a.channel_id, a.day, a.model, count(*) FILTER (WHERE a.is_first), count(*),
               count(*) FILTER (WHERE a.failed), sum(a.prompt_tokens), sum(a.completion_tokens), sum(a.cost)
        FROM attempts a GROUP BY a.project_id, a.channel_id, a.day, a.model
        ON CONFLICT (project_id, day, channel_id, model) DO UPDATE SET turns = p.turns + EXCLUDED.turns,
            attempts = p.attempts + EXCLUDED.attempts, failed_attempts = p.failed_attempts + EXCLUDED.failed_attempts,
            prompt_tokens = p.prompt_tokens + EXCLUDED.prompt_tokens,
            completion_tokens = p.completion_tokens + EXCLUDED.completion_tokens,
            cost = coalesce(p.cost + EXCLUDED.cost, p.cost, EXCLUDED.cost)
    ),
    steers AS (
        DELETE FROM state.steers s USING gone WHERE s.agent_turn_id = gone.agent_turn_id
    ),
    receivers AS (
        DELETE FROM state.push_receivers p USING gone WHERE p.agent_turn_id = gone.agent_turn_id
    ),
    events AS (
        DELETE FROM state.webhook_events e USING gone WHERE e.agent_turn_id = gone.agent_turn_id
    ),
    firings AS (
        DELETE FROM state.schedule_firings f USING gone WHERE f.agent_turn_id = gone.agent_turn_id
    ),
    wakes AS (
        DELETE FROM resource.schedules s USING gone
        WHERE s.waker_turn_id = gone.agent_turn_id AND s.project_id = gone.project_id
    ),
    webhooks AS (
        DELETE FROM state.webhooks w USING gone
        WHERE w.agent_turn_id = gone.agent_turn_id AND w.project_id = gone.project_id
    ),
    questions AS (
        DELETE FROM state.interrupts q USING gone
        WHERE q.agent_turn_id = gone.agent_turn_id AND q.project_id = gone.project_id
    ),
    nodes AS (
        DELETE FROM state.turn_nodes n USING gone WHERE n.agent_turn_id = gone.agent_turn_id
    ),
    batches AS (  -- their tasks go with them
        DELETE FROM state.pmo_batches b USING gone
        WHERE b.parent_agent_turn_id = gone.agent_turn_id AND b.project_id = gone.project_id
        RETURNING b.parent_agent_turn_id, b.project_id, b.batch_id
    ),
    edges AS (
        DELETE FROM state.execution_edges e USING (
            SELECT w.agent_turn_id, w.project_id, w.correlation_id FROM waiting w
            UNION SELECT i.agent_turn_id, i.project_id, i.correlation_id FROM inbox i
            UNION SELECT b.parent_agent_turn_id, b.project_id, b.batch_id FROM batches b) c
        WHERE md5(e.correlation_id) = md5(c.correlation_id) AND e.project_id = c.project_id
          AND (e.target_agent_turn_id = c.agent_turn_id OR e.source_agent_turn_id = c.agent_turn_id)
    )
    SELECT gone.agent_turn_id AS id
    FROM gone CROSS JOIN (SELECT state.forget_budgets(ARRAY(SELECT g.agent_turn_id FROM gone g))) AS budgets
$$;
