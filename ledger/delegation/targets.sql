-- Whom delegating calls name (protocol §12.1).

-- name: find_targets :many
-- The profiles and agents that are wanted, one row each; what is not there is null. is_above: the agent is the
-- caller's, or that of a turn which waits for the caller's, at any distance. output_box_id is of the caller's channel.
WITH RECURSIVE above AS (
    SELECT :agent_turn_id::text AS agent_turn_id
    UNION ALL
    SELECT n.parent_turn_id FROM above JOIN state.turn_nodes n ON n.agent_turn_id = above.agent_turn_id
    WHERE n.waited AND n.project_id = :project_id
)
SELECT w.kind, w.ref, a.agent_id, a.display_name, coalesce(
    CASE WHEN h.active_channel_id = :channel_id THEN h.output_box_id END, m.last_output_box_id)::text AS output_box_id,
       p.profile_box_id, p.name AS profile_name, p.worker_target, coalesce(p.tags, '[]') AS tags,
       CASE WHEN p.settings ->> 'profile_box_id' = p.profile_box_id THEN p.settings -> 'budget' END AS budget,
       coalesce(h.active_agent_turn_id IN (SELECT x.agent_turn_id FROM above x), false) AS is_above
FROM jsonb_to_recordset(:wanted::jsonb) w (kind text, ref text)
LEFT JOIN LATERAL (
    SELECT a.* FROM resource.project_agents a
    WHERE w.kind = 'agent' AND a.agent_id = w.ref AND a.project_id = :project_id {by_key}) a ON true
LEFT JOIN LATERAL (
    SELECT p.* FROM resource.profiles p
    WHERE w.kind = 'profile' AND lower(p.name) = lower(w.ref) AND p.project_id = :project_id
    UNION ALL
    SELECT p.* FROM resource.profiles p
    WHERE w.kind = 'agent' AND p.profile_box_id = a.profile_box_id::text AND p.project_id = :project_id
    LIMIT 1) p ON true
LEFT JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = :project_id AND h.status <> 'idle'
LEFT JOIN LATERAL state.channel_boxes(:project_id, :channel_id, a.agent_id) m ON a.agent_id IS NOT NULL;

-- name: read_prompt_roster :one
-- What a system prompt may say of an agent and its project: its display name, and profiles by name, those of :names
-- (lower case) or all.
SELECT (SELECT a.display_name FROM resource.project_agents a
        WHERE a.agent_id = :agent_id AND a.project_id = :project_id) AS display_name,
       coalesce((SELECT jsonb_agg(jsonb_build_object('name', p.name, 'tags', p.tags) ORDER BY lower(p.name))
                 FROM (SELECT p.name, p.tags FROM resource.profiles p
                       WHERE p.project_id = :project_id
                         AND (:names::text[] IS NULL OR lower(p.name) = ANY (:names::text[]))
                       ORDER BY lower(p.name) LIMIT :row_limit::int) p), '[]') AS profiles;
