-- Agents with what they have in hand, and the processes that serve them, as people look at them.

-- name: page_agents :many
-- The agents of a project by id, after one of them; of a profile, or in a state, if that is given. Of what an agent has
-- in hand or queued a channel sees its own.
WITH page AS MATERIALIZED (
    SELECT a.agent_id, a.project_id, a.worker_target, a.status, a.display_name, a.tags,
           a.metadata ->> 'instance_of' AS instance_of,
           p.name AS profile_name, h.status AS head_status, h.active_agent_turn_id, h.active_channel_id,
           h.turn_epoch, h.updated_at, h.started_at, h.resume_deadline, h.waiting_tool_count, h.restart_count,
           :channel_id::text IS NULL OR h.active_channel_id = :channel_id AS seen
    FROM resource.project_agents a
    LEFT JOIN resource.profiles p ON p.profile_box_id = a.profile_box_id::text AND p.project_id = a.project_id
    LEFT JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = a.project_id
    WHERE a.project_id COLLATE "C" = :project_id AND (:after_id::text IS NULL OR a.agent_id > :after_id)
      AND (:agent_id::text IS NULL OR a.agent_id = :agent_id)
      AND (:profile_name::text IS NULL OR lower(p.name) = lower(:profile_name))
      AND (:shown::text IS NULL OR CASE :shown
               WHEN 'busy' THEN h.status <> 'idle' AND (:channel_id::text IS NULL OR h.active_channel_id = :channel_id)
               WHEN 'queued' THEN EXISTS (
                   SELECT FROM state.queued_turns q WHERE q.agent_id = a.agent_id AND q.project_id = a.project_id
                     AND (:channel_id::text IS NULL OR q.channel_id = :channel_id))
               ELSE a.status = :shown END)
    ORDER BY a.agent_id LIMIT :row_limit::int
)
SELECT g.agent_id, g.worker_target, g.status, g.display_name,
       ARRAY(SELECT coalesce(t.tag, '') FROM jsonb_array_elements_text(
           CASE jsonb_typeof(g.tags) WHEN 'array' THEN g.tags ELSE '[]' END) t (tag)) AS tags,
       g.instance_of, g.profile_name,
       CASE WHEN g.seen THEN coalesce(g.head_status, 'idle') END AS head_status,
       CASE WHEN g.seen THEN g.active_agent_turn_id END AS agent_turn_id,
       CASE WHEN g.seen THEN g.active_channel_id END AS channel_id,
       CASE WHEN g.seen THEN coalesce(g.turn_epoch, 0) END AS turn_epoch,
       CASE WHEN g.seen THEN g.updated_at END AS updated_at, CASE WHEN g.seen THEN g.started_at END AS started_at,
       CASE WHEN g.seen THEN g.resume_deadline END AS resume_deadline,
       CASE WHEN g.seen THEN coalesce(g.waiting_tool_count, 0) END AS waiting_calls,
       CASE WHEN g.seen THEN coalesce(g.restart_count, 0) END AS restarts, q.queued, q.oldest_at,
       EXISTS (SELECT FROM state.workers w WHERE w.worker_target = g.worker_target
               AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8)) AS served
FROM page g CROSS JOIN LATERAL (
    SELECT count(*) AS queued, min(x.created_at) AS oldest_at FROM (
        SELECT n.created_at FROM state.queued_turns n WHERE n.agent_id = g.agent_id AND n.project_id = g.project_id
          AND (:channel_id::text IS NULL OR n.channel_id = :channel_id)
        ORDER BY n.created_at LIMIT 1000) x) q
ORDER BY g.agent_id;

-- name: list_queue :many
-- The queued turns of an agent, of one channel if that is given, in the order in which they will run, with the
-- beginning of the instruction.
SELECT q.agent_turn_id, q.channel_id, q.created_at,
       (SELECT left(coalesce(c.content ->> 'text', c.content ->> 'data'), 300)
        FROM public.box_cards p JOIN public.cards c ON c.card_id = p.card_id
        WHERE p.box_id = q.context_box_id AND c.tenant_id = q.project_id AND c.metadata ->> 'type' = 'task.instruction'
        ORDER BY p.position DESC LIMIT 1) AS asked
FROM (
    SELECT n.* FROM state.queued_turns n
    WHERE n.agent_id = :agent_id AND n.project_id = :project_id
      AND (:channel_id::text IS NULL OR n.channel_id = :channel_id)
    ORDER BY n.created_at LIMIT :row_limit::int) q
ORDER BY q.created_at;

-- name: list_processes :many
-- The bridges, and the workers of targets that the project's agents and profiles name, that signed on in the last day
-- and did not end as they should, the latest first.
WITH targets AS MATERIALIZED (
    SELECT a.worker_target FROM resource.project_agents a WHERE a.project_id COLLATE "C" = :project_id
    UNION
    SELECT p.worker_target FROM resource.profiles p WHERE p.project_id = :project_id
)
SELECT w.instance, w.worker_target = '_bridge' AS is_bridge,
       array_agg(w.worker_target ORDER BY w.worker_target) AS targets,
       min(w.started_at) AS started_at, max(w.last_seen_at) AS last_seen_at, min(w.protocol_level) AS protocol_level,
       max(w.last_seen_at) > now() - make_interval(secs => :silent_seconds::float8) AS here
FROM state.workers w
WHERE (w.worker_target = '_bridge' OR w.worker_target IN (SELECT t.worker_target FROM targets t)) AND w.left_at IS NULL
GROUP BY w.instance, w.worker_target = '_bridge' ORDER BY max(w.last_seen_at) DESC, w.instance LIMIT :row_limit::int;

-- name: list_target_needs :many
-- The worker targets that the project's agents and profiles name, how many of those, and how many workers serve each
-- now.
WITH named AS (
    SELECT a.worker_target, 1 AS agents, 0 AS profiles FROM resource.project_agents a
    WHERE a.project_id COLLATE "C" = :project_id
    UNION ALL
    SELECT p.worker_target, 0, 1 FROM resource.profiles p WHERE p.project_id = :project_id
)
SELECT n.worker_target, sum(n.agents)::bigint AS agents, sum(n.profiles)::bigint AS profiles,
       (SELECT count(*) FROM state.workers w WHERE w.worker_target = n.worker_target
          AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8)) AS workers
FROM named n WHERE n.worker_target IS NOT NULL GROUP BY n.worker_target ORDER BY n.worker_target LIMIT :row_limit::int;
