-- Usage and cost of models, and the models that profiles name; for display only.

-- name: sum_usage :many
-- The attempts of a project's steps and what steps of calls used, of one channel or of these turns if that is given,
-- since a moment, by agent, model or day; the last row, without a name, is the sum of all.
WITH attempts AS (
    SELECT s.agent_id, s.agent_turn_id, s.step_id, a.attempt, a.attempt -> 'usage' AS counts, s.started_at,
           CASE jsonb_typeof(a.attempt -> 'response_cost')
                WHEN 'number' THEN (a.attempt ->> 'response_cost')::numeric END AS cost,
           coalesce(a.attempt ->> 'usage_kind', 'unknown') AS kind
    FROM state.agent_steps s
    CROSS JOIN LATERAL jsonb_array_elements(
        CASE jsonb_typeof(s.metadata -> 'attempts') WHEN 'array' THEN s.metadata -> 'attempts'
             ELSE '[]' END) AS a (attempt)
    WHERE s.project_id = :project_id AND (:channel_id::text IS NULL OR s.channel_id = :channel_id)
      AND (:since::timestamptz IS NULL OR s.started_at >= :since)
      AND (:turns::text[] IS NULL OR s.agent_turn_id = ANY (:turns))
    UNION ALL
    SELECT c.agent_id, c.agent_turn_id, c.step_id, a.attempt, a.attempt -> 'usage', c.created_at,
           (a.attempt ->> 'response_cost')::numeric, 'exact'
    FROM state.call_steps c CROSS JOIN LATERAL (SELECT {attempt_of_call} AS attempt) a
    WHERE c.project_id = :project_id AND c.model IS NOT NULL
      AND (:channel_id::text IS NULL OR c.channel_id = :channel_id)
      AND (:since::timestamptz IS NULL OR c.created_at >= :since)
      AND (:turns::text[] IS NULL OR c.agent_turn_id = ANY (:turns))
),
named AS (
    SELECT *, CASE :grouping::text WHEN 'agent' THEN agent_id WHEN 'model' THEN coalesce(attempt ->> 'model', 'unknown')
                   ELSE to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') END AS name
    FROM attempts
)
SELECT name, count(DISTINCT agent_turn_id) AS turns, count(DISTINCT step_id) AS steps, count(*) AS attempts,
       count(*) FILTER (WHERE attempt ->> 'error_code' <> 'canceled') AS failed_attempts,
       coalesce(sum(state.as_count(counts ->> 'prompt_tokens')), 0)::bigint AS prompt_tokens,
       coalesce(sum(state.as_count(counts ->> 'completion_tokens')), 0)::bigint AS completion_tokens,
       coalesce(sum(state.as_count(counts ->> 'total_tokens')), 0)::bigint AS total_tokens,
       sum(cost)::float8 AS response_cost,
       count(*) FILTER (WHERE kind = 'estimated') AS estimated_attempts,
       count(*) FILTER (WHERE kind NOT IN ('exact', 'estimated')) AS unknown_attempts
FROM named GROUP BY GROUPING SETS ((name), ()) ORDER BY grouping(name), name;

-- name: sum_turn_usage :one
-- What the models of a turn's committed steps and of their calls' steps counted, all attempts included; of those after
-- a step, up to another.
SELECT coalesce(sum(state.as_count(u.counts ->> 'prompt_tokens')), 0)::bigint AS prompt_tokens,
       coalesce(sum(state.as_count(u.counts ->> 'completion_tokens')), 0)::bigint AS completion_tokens,
       coalesce(sum(state.as_count(u.counts ->> 'cached_tokens')), 0)::bigint AS cached_tokens,
       coalesce(sum(state.as_count(u.counts ->> 'reasoning_tokens')), 0)::bigint AS reasoning_tokens
FROM (SELECT s.step_id, s.metadata -> 'llm_usage' AS counts FROM state.agent_steps s
      WHERE s.agent_turn_id = :agent_turn_id AND s.project_id = :project_id
      UNION ALL SELECT c.step_id, {attempt_of_call} -> 'usage' FROM state.call_steps c
      WHERE c.agent_turn_id = :agent_turn_id AND c.project_id = :project_id AND c.model IS NOT NULL) u
WHERE :after_step::int = 0 AND :until_step::int IS NULL
   OR state.as_count(substring(u.step_id FROM '-s([0-9]+)$'))
      BETWEEN :after_step + 1 AND coalesce(:until_step, 1000000);

-- name: list_profile_models :many
-- The models that profiles name, fallbacks and those of their summaries included, of one project or of all.
SELECT p.project_id, p.name AS profile_name, m.model
FROM resource.profiles p
JOIN public.box_cards b ON b.box_id = state.as_uuid(p.profile_box_id)
JOIN public.cards c ON c.card_id = b.card_id AND c.metadata ->> 'type' = 'sys.profile'
CROSS JOIN LATERAL (
    SELECT 1 AS place, c.content #> '{data,llm_config,model}' AS value
    UNION ALL SELECT 2, c.content #> '{data,memory,summary_model}'
    UNION ALL SELECT 2 + f.place, f.value FROM jsonb_array_elements(CASE jsonb_typeof(
        c.content #> '{data,llm_config,fallbacks}') WHEN 'array' THEN c.content #> '{data,llm_config,fallbacks}'
        ELSE '[]' END) WITH ORDINALITY f (value, place)) named
CROSS JOIN LATERAL (SELECT named.value #>> '{}' AS model) m
WHERE (:project_id::text IS NULL OR p.project_id = :project_id) AND jsonb_typeof(named.value) = 'string'
ORDER BY p.project_id, lower(p.name), named.place;
