-- Agents that a turn provisions (protocol §12).

-- name: provision_facts :one
-- What is there: the agent, the agent that it is derived from, and the profiles that are named. What is not there is
-- null.
SELECT EXISTS (SELECT FROM state.identity_edges e WHERE e.edge_id = :edge_id AND e.project_id = :project_id) AS done,
       a.agent_id IS NOT NULL AS found, a.status, a.profile_box_id::text AS agent_profile_box_id,
       a.owner_agent_id, a.worker_target,
       coalesce(a.tags, '[]') AS tags, coalesce(a.metadata, '{}') AS metadata, a.display_name, a.xmin::text AS version,
       f.profile_box_id::text AS source_profile_box_id,
       (SELECT to_jsonb(p)::text FROM resource.profiles p
        WHERE lower(p.name) = lower(:profile_name::text) AND p.project_id = :project_id) AS named_profile,
       (SELECT to_jsonb(p)::text FROM resource.profiles p
        WHERE p.profile_box_id = coalesce(:profile_box_id::text,
                                          CASE WHEN :profile_name::text IS NULL AND :derived_from::text IS NOT NULL
            THEN f.profile_box_id ELSE a.profile_box_id END::text) AND p.project_id = :project_id) AS boxed_profile
FROM (SELECT) AS always
LEFT JOIN resource.project_agents a ON a.agent_id = :agent_id AND a.project_id = :project_id
LEFT JOIN resource.project_agents f ON f.agent_id = :derived_from AND f.project_id = :project_id;

-- name: provision_agent :one
-- Adds an agent with its head, or changes the metadata and name of one that is still as it was read (:version); leaves
-- an identity edge. The profile is locked, as by add_agent. verdict: added | changed | again (it is not as it was
-- read).
WITH
profile AS (
    UPDATE resource.profiles p SET name = p.name WHERE p.profile_box_id = :profile_box_id AND p.project_id = :project_id
    RETURNING state.as_uuid(p.profile_box_id) AS profile_box_id
),
held AS MATERIALIZED (
    SELECT a.agent_id FROM profile CROSS JOIN resource.project_agents a
    WHERE a.agent_id = :agent_id AND a.project_id = :project_id AND a.xmin::text = :version::text FOR NO KEY UPDATE OF a
),
added AS (
    INSERT INTO resource.project_agents
        (project_id, agent_id, profile_box_id, worker_target, tags, display_name, owner_agent_id, metadata)
    SELECT :project_id, :agent_id, p.profile_box_id, :worker_target, :tags::jsonb, :display_name::text,
           :owner_agent_id::text, :metadata::jsonb
    FROM profile p WHERE :version IS NULL ON CONFLICT DO NOTHING RETURNING agent_id
),
head AS (
    INSERT INTO state.agent_state_head (project_id, agent_id)
    SELECT :project_id, agent_id FROM added ON CONFLICT DO NOTHING
),
changed AS (
    UPDATE resource.project_agents a SET display_name = :display_name::text, metadata = :metadata::jsonb
    FROM held WHERE a.agent_id = held.agent_id AND a.project_id = :project_id AND a.xmin::text = :version
    RETURNING a.agent_id
),
edge AS (
    INSERT INTO state.identity_edges
        (edge_id, project_id, channel_id, action, source_agent_id, target_agent_id, trace_id,
         parent_step_id, metadata, created_at)
    SELECT :edge_id, :project_id, :channel_id, x.action, :caller_agent_id, :agent_id, :trace_id::text,
           :parent_step_id, :edge_metadata::jsonb, clock_timestamp()
    FROM (SELECT 'add' AS action FROM added UNION ALL SELECT 'change' FROM changed) x
    ON CONFLICT DO NOTHING
)
SELECT CASE WHEN e.action IS NOT NULL  -- by an earlier try of this call
                 THEN CASE e.action WHEN 'add' THEN 'added' ELSE 'changed' END
            WHEN EXISTS (SELECT FROM added) THEN 'added'
            WHEN EXISTS (SELECT FROM changed) THEN 'changed' ELSE 'again' END AS verdict
FROM (SELECT) AS always LEFT JOIN state.identity_edges e ON e.edge_id = :edge_id;
