-- The demo project's everyday turns, moved into the past: the system itself can make none that are two weeks old. Run in one
-- transaction that passes triggers by (`session_replication_role = replica`), after the turns have ended.

-- name: age_inbox :exec
-- When they were asked for.
UPDATE state.agent_inbox i
SET created_at = i.created_at - x.back, processed_at = i.processed_at - x.back, archived_at = i.archived_at - x.back
FROM (SELECT turn, make_interval(secs => age) AS back FROM unnest(:turns::text[], :ages::float8[]) u (turn, age)) x
WHERE i.project_id = :project_id AND i.agent_turn_id = x.turn;

-- name: age_steps :exec
-- When their steps ran.
UPDATE state.agent_steps s SET started_at = s.started_at - x.back, ended_at = s.ended_at - x.back
FROM (SELECT turn, make_interval(secs => age) AS back FROM unnest(:turns::text[], :ages::float8[]) u (turn, age)) x
WHERE s.project_id = :project_id AND s.agent_turn_id = x.turn;

-- name: age_outcomes :exec
-- When they ended.
UPDATE state.turn_outcomes o
SET started_at = o.started_at - x.back, ended_at = o.ended_at - x.back, announced_at = o.announced_at - x.back
FROM (SELECT turn, make_interval(secs => age) AS back FROM unnest(:turns::text[], :ages::float8[]) u (turn, age)) x
WHERE o.project_id = :project_id AND o.agent_turn_id = x.turn;

-- name: age_cards :exec
-- When their cards were written.
UPDATE public.cards c SET created_at = c.created_at - x.back
FROM (SELECT turn, make_interval(secs => age) AS back FROM unnest(:turns::text[], :ages::float8[]) u (turn, age)) x
WHERE c.tenant_id = :project_id AND c.metadata ->> 'agent_turn_id' = x.turn;

-- name: age_edges :exec
-- When they were connected with who asked.
UPDATE state.execution_edges e SET created_at = e.created_at - x.back
FROM (SELECT turn, make_interval(secs => age) AS back FROM unnest(:turns::text[], :ages::float8[]) u (turn, age)) x
WHERE e.project_id = :project_id AND e.target_agent_turn_id = x.turn;
