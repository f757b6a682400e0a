-- The present state of all projects. Each part reads at most row_limit rows of an index on live rows.

-- name: measure_inbox :one
-- Live inbox rows by status, those that are tried again by reason, and for how long the oldest due one has been due; of
-- these worker targets, or of all.
WITH live AS MATERIALIZED (
    SELECT i.status, i.next_retry_at, i.defer_reason, i.retry_count FROM state.agent_inbox i
    WHERE i.archived_at IS NULL AND i.inbox_id >= '' AND (:worker_targets::text[] IS NULL OR EXISTS (
        SELECT FROM resource.project_agents a WHERE a.agent_id = i.agent_id AND a.project_id = i.project_id
          AND a.worker_target = ANY (:worker_targets::text[])))
    ORDER BY i.next_retry_at LIMIT :row_limit::int
)
SELECT coalesce((SELECT jsonb_object_agg(s.status, s.n)
                 FROM (SELECT l.status, count(*) AS n FROM live l GROUP BY l.status) s),
                '{}') AS rows,
       coalesce((SELECT jsonb_object_agg(s.defer_reason, s.n) FROM (
                     SELECT l.defer_reason, count(*) AS n FROM live l
                     WHERE l.status IN ('deferred', 'processing') AND l.retry_count > 0
                       AND l.defer_reason IS NOT NULL GROUP BY l.defer_reason) s), '{}') AS tried_again,
       coalesce((SELECT extract(epoch FROM now() - min(l.next_retry_at)) FROM live l
                 WHERE l.status IN ('pending', 'deferred') AND l.next_retry_at <= now()),
                0)::float8 AS oldest_due_seconds;

-- name: count_open_threads :one
-- Threads of these worker targets that have open messages.
SELECT count(*) AS found FROM (
    SELECT FROM state.threads t WHERE t.status = 'open' AND t.worker_target = ANY (:worker_targets::text[])
    LIMIT :row_limit::int) t;

-- name: measure_spending :many
-- What the projects that have limits may spend in this day and month together, and what of it is spent, reserved, and
-- booked unknown.
WITH limited AS MATERIALIZED (
    SELECT p.period, p.project_id || '/' || p.period || '/' || to_char(
        now() AT TIME ZONE 'UTC', CASE p.period WHEN 'day' THEN 'YYYY-MM-DD' ELSE 'YYYY-MM' END) AS budget_id
    FROM state.project_budgets p WHERE num_nonnulls(p.max_tokens, p.max_cost, p.max_turns) > 0 LIMIT :row_limit::int
)
SELECT l.period, coalesce(sum(b.max_tokens), 0)::bigint AS max_tokens,
       coalesce(sum(b.spent_tokens) FILTER (WHERE b.max_tokens IS NOT NULL), 0)::bigint AS spent_tokens,
       coalesce(sum(b.reserved_tokens) FILTER (WHERE b.max_tokens IS NOT NULL), 0)::bigint AS reserved_tokens,
       coalesce(sum(b.unsettled_tokens) FILTER (WHERE b.max_tokens IS NOT NULL), 0)::bigint AS unsettled_tokens,
       coalesce(sum(b.max_cost), 0)::bigint AS max_cost,
       coalesce(sum(b.spent_cost) FILTER (WHERE b.max_cost IS NOT NULL), 0)::bigint AS spent_cost,
       coalesce(sum(b.reserved_cost) FILTER (WHERE b.max_cost IS NOT NULL), 0)::bigint AS reserved_cost,
       coalesce(sum(b.unsettled_cost) FILTER (WHERE b.max_cost IS NOT NULL), 0)::bigint AS unsettled_cost
FROM limited l JOIN state.budgets b ON b.budget_id = l.budget_id GROUP BY l.period ORDER BY l.period;

-- name: look_around :one
-- The whole state in one statement: agents, inbox, turns of the last minute, repairs, workers, threads, limited models.
WITH
live AS MATERIALIZED (
    SELECT i.status, i.next_retry_at, i.defer_reason, i.retry_count FROM state.agent_inbox i
    WHERE i.archived_at IS NULL AND i.inbox_id >= '' ORDER BY i.next_retry_at LIMIT :row_limit::int
),
busy AS MATERIALIZED (
    SELECT h.status FROM state.agent_state_head h WHERE h.output_box_id IS NOT NULL LIMIT :row_limit::int
),
known AS MATERIALIZED (SELECT a.agent_id FROM resource.project_agents a LIMIT :row_limit::int),
ended AS MATERIALIZED (
    SELECT o.status, (o.stats ->> 'e2e_ms')::float8 / 1000 AS seconds FROM state.turn_outcomes o
    WHERE o.ended_at > now() - interval '1 minute' LIMIT :row_limit::int
)
SELECT now() AS seen_at,
       coalesce((SELECT jsonb_object_agg(s.status, s.n)
                 FROM (SELECT l.status, count(*) AS n FROM live l GROUP BY l.status) s),
                '{}') AS rows,
       coalesce((SELECT jsonb_object_agg(s.defer_reason, s.n) FROM (
                     SELECT l.defer_reason, count(*) AS n FROM live l
                     WHERE l.status IN ('deferred', 'processing') AND l.retry_count > 0
                       AND l.defer_reason IS NOT NULL GROUP BY l.defer_reason) s), '{}') AS tried_again,
       coalesce((SELECT extract(epoch FROM now() - min(l.next_retry_at)) FROM live l
                 WHERE l.status IN ('pending', 'deferred') AND l.next_retry_at <= now()),
                0)::float8 AS oldest_due_seconds,
       jsonb_build_object('idle', greatest(0, (SELECT count(*) FROM known) - (SELECT count(*) FROM busy)))
           || coalesce((SELECT jsonb_object_agg(s.status, s.n) FROM (
                            SELECT b.status, count(*) AS n FROM busy b GROUP BY b.status) s), '{}') AS agents,
       coalesce((SELECT jsonb_object_agg(s.status, s.n)
                 FROM (SELECT e.status, count(*) AS n FROM ended e GROUP BY e.status) s),
                '{}') AS outcomes,
       (SELECT avg(e.seconds) FROM ended e) AS mean_seconds,
       coalesce((SELECT jsonb_object_agg(r.rule, r.repaired) FROM state.repairs r), '{}') AS repairs,
       coalesce((SELECT jsonb_object_agg(w.worker_target, w.n) FROM (
                     SELECT v.worker_target, count(*) AS n FROM state.workers v
                     WHERE v.worker_target <> '_bridge'
                       AND v.last_seen_at > now() - make_interval(secs => :silent_seconds::float8)
                     GROUP BY v.worker_target) w),
                '{}') AS workers,
       (SELECT count(*) FROM (SELECT FROM state.threads t
                              WHERE t.status = 'open' LIMIT :row_limit::int) t) AS open_threads,
       coalesce((SELECT jsonb_agg(jsonb_build_object(
                            'account', q.account, 'model', q.model, 'paused_until', q.paused_until,
                            'waiting', q.waiting) ORDER BY q.paused_until DESC NULLS LAST, q.account, q.model)
                 FROM (SELECT * FROM state.model_queues m
                       WHERE m.paused_until > now()
                          OR (m.waiting > 0 AND m.updated_at > now() - interval '1 minute')
                       LIMIT :row_limit::int) q),
                '[]') AS limited_models;

-- name: list_target_uses :many
-- The worker targets that agents and profiles name, the number of those, and the name of one of them.
WITH named AS (
    (SELECT a.worker_target, 1 AS agents, 0 AS profiles, 'agent ' || a.agent_id || ' of ' || a.project_id AS example
     FROM resource.project_agents a LIMIT :row_limit::int)
    UNION ALL
    (SELECT p.worker_target, 0, 1, 'profile ' || p.name || ' of ' || p.project_id
     FROM resource.profiles p LIMIT :row_limit::int)
)
SELECT n.worker_target, sum(n.agents)::bigint AS agents, sum(n.profiles)::bigint AS profiles, min(n.example) AS example
FROM named n WHERE n.worker_target IS NOT NULL GROUP BY n.worker_target ORDER BY n.worker_target;

-- name: list_live_workers :many
-- The workers that signed on lately, with target and time since then.
SELECT w.instance, w.worker_target, greatest(0, extract(epoch FROM now() - w.last_seen_at))::float8 AS seen_seconds
FROM state.workers w WHERE w.worker_target <> '_bridge'
  AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8)
ORDER BY w.instance, w.worker_target LIMIT :row_limit::int;

-- name: list_tool_targets :many
-- The tools of all projects, where their calls go, and the schemas of their arguments; and those that are not there,
-- each with a profile that is run by it.
SELECT * FROM (
    SELECT t.project_id, t.tool_name, t.target_subject, t.parameters, NULL AS missed_by FROM resource.tools t
    UNION ALL
    SELECT p.project_id, c.content #>> '{data,run_by}', NULL, NULL, min(p.name) FROM resource.profiles p
    JOIN public.box_cards b ON b.box_id = state.as_uuid(p.profile_box_id)
    JOIN public.cards c ON c.card_id = b.card_id AND c.metadata ->> 'type' = 'sys.profile'
    WHERE p.settings ? 'needs_level' AND NOT EXISTS (
        SELECT FROM resource.tools t
        WHERE t.project_id = p.project_id AND t.tool_name = c.content #>> '{data,run_by}')
    GROUP BY 1, 2) x
WHERE x.tool_name IS NOT NULL ORDER BY x.project_id, x.tool_name LIMIT :row_limit::int;
