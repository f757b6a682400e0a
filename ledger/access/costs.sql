-- What turns cost, for charts.

-- name: sum_costs :many
-- The attempts of the turns of a project, of one channel if that is given, that were enqueued since a moment, at most
-- so many of the newest: by day, agent, model, channel and profile, and the sum of all. Days are of the steps' begin,
-- in UTC. What steps of calls used counts, too. Of removed turns past_costs has days, models and channels.
WITH turns AS MATERIALIZED (
    SELECT i.agent_turn_id, i.channel_id, i.payload ->> 'profile_box_id' AS profile_box_id FROM state.agent_inbox i
    WHERE i.project_id COLLATE "C" = :project_id AND i.message_type IN {turn_types}
      AND i.created_at >= :since::timestamptz
      AND (:channel_id::text IS NULL OR i.channel_id = :channel_id)
    ORDER BY i.created_at DESC LIMIT :row_limit::int
),
attempts AS MATERIALIZED (
    SELECT s.agent_id, t.agent_turn_id, t.channel_id, t.profile_box_id, (s.started_at AT TIME ZONE 'UTC')::date AS day,
           coalesce(a.attempt ->> 'model', 'unknown') AS model,
           coalesce(a.attempt ->> 'error_code' <> 'canceled', false) AS failed,
           state.as_count(a.attempt #>> '{usage,prompt_tokens}') AS prompt_tokens,
           state.as_count(a.attempt #>> '{usage,completion_tokens}') AS completion_tokens,
           CASE jsonb_typeof(a.attempt -> 'response_cost')
                WHEN 'number' THEN (a.attempt ->> 'response_cost')::numeric END AS cost
    FROM turns t
    JOIN state.agent_steps s ON s.agent_turn_id = t.agent_turn_id AND s.project_id = :project_id
    CROSS JOIN LATERAL (SELECT s.metadata -> 'attempts' AS list {once}) l
    CROSS JOIN LATERAL jsonb_array_elements(CASE jsonb_typeof(l.list)
                                                 WHEN 'array' THEN l.list ELSE '[]' END) AS a (attempt)
    UNION ALL
    SELECT c.agent_id, t.agent_turn_id, t.channel_id, t.profile_box_id, (c.created_at AT TIME ZONE 'UTC')::date,
           c.model, false, c.tokens - c.written, c.written, c.cost / 1000000.0
    FROM turns t JOIN state.call_steps c ON c.agent_turn_id = t.agent_turn_id AND c.project_id = :project_id
    WHERE c.model IS NOT NULL
),
by_turn AS MATERIALIZED (  -- so that turns need not be counted distinct
    SELECT x.agent_id, x.agent_turn_id, x.channel_id, x.profile_box_id, x.day, x.model, count(*) AS attempts,
           count(*) FILTER (WHERE x.failed) AS failed, coalesce(sum(x.prompt_tokens), 0) AS prompt_tokens,
           coalesce(sum(x.completion_tokens), 0) AS completion_tokens, sum(x.cost) AS cost
    FROM attempts x GROUP BY x.agent_turn_id, x.agent_id, x.channel_id, x.profile_box_id, x.day, x.model
),
present AS (
    SELECT CASE grouping(b.day, b.agent_id, b.model, b.channel_id, b.profile_box_id)
               WHEN 15 THEN 'day' WHEN 23 THEN 'agent' WHEN 27 THEN 'model' WHEN 29 THEN 'channel'
               WHEN 30 THEN 'profile' ELSE 'all' END AS grouped,
           coalesce(b.day::text, b.agent_id, b.model, b.channel_id, b.profile_box_id) AS name,
           count(DISTINCT b.agent_turn_id) AS turns, coalesce(sum(b.attempts), 0)::bigint AS attempts,
           coalesce(sum(b.failed), 0)::bigint AS failed_attempts,
           coalesce(sum(b.prompt_tokens), 0)::bigint AS prompt_tokens,
           coalesce(sum(b.completion_tokens), 0)::bigint AS completion_tokens, sum(b.cost)::float8 AS cost
    FROM by_turn b GROUP BY GROUPING SETS ((b.day), (b.agent_id), (b.model), (b.channel_id), (b.profile_box_id), ())
),
past AS (
    SELECT CASE grouping(p.day, p.model, p.channel_id)
               WHEN 3 THEN 'day' WHEN 5 THEN 'model' WHEN 6 THEN 'channel' ELSE 'all' END AS grouped,
           coalesce(p.day::text, p.model, p.channel_id) AS name, sum(p.turns) AS turns, sum(p.attempts) AS attempts,
           sum(p.failed_attempts) AS failed_attempts, sum(p.prompt_tokens) AS prompt_tokens,
           sum(p.completion_tokens) AS completion_tokens, sum(p.cost)::float8 AS cost
    FROM state.past_costs p
    WHERE p.project_id = :project_id AND p.day >= (:since::timestamptz AT TIME ZONE 'UTC')::date
      AND (:channel_id::text IS NULL OR p.channel_id = :channel_id)
    GROUP BY GROUPING SETS ((p.day), (p.model), (p.channel_id), ())
),
sums AS (
    SELECT x.grouped, x.name, coalesce(sum(x.turns), 0)::bigint AS turns,
           coalesce(sum(x.attempts), 0)::bigint AS attempts,
           coalesce(sum(x.failed_attempts), 0)::bigint AS failed_attempts,
           coalesce(sum(x.prompt_tokens), 0)::bigint AS prompt_tokens,
           coalesce(sum(x.completion_tokens), 0)::bigint AS completion_tokens, sum(x.cost) AS cost
    FROM (SELECT * FROM present UNION ALL SELECT * FROM past) x GROUP BY x.grouped, x.name
)
SELECT s.grouped, CASE s.grouped WHEN 'profile' THEN coalesce(c.content #>> '{data,name}', 'unknown')
                       ELSE s.name END AS name,
       s.turns, s.attempts, s.failed_attempts, s.prompt_tokens, s.completion_tokens, s.cost,
       (SELECT count(*) FROM turns) AS turns_read
FROM sums s
LEFT JOIN LATERAL (
    SELECT k.content FROM public.box_cards b JOIN public.cards k ON k.card_id = b.card_id
    WHERE s.grouped = 'profile' AND b.box_id = state.as_uuid(s.name)
      AND k.tenant_id = :project_id AND k.metadata ->> 'type' = 'sys.profile'
    ORDER BY b.position LIMIT 1) c ON true
ORDER BY s.grouped, s.name;
