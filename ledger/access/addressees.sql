-- Whom a request from outside may name (protocol §14): agents that take turns, and profiles that have instances.

-- name: find_addressed_agent :opt
-- An agent that an enqueue would take, and that is no instance of a profile.
SELECT a.agent_id AS name, false AS is_profile, a.created_at AS since FROM resource.project_agents a
WHERE a.agent_id = :name AND a.project_id = :project_id AND a.status IN ('active', 'paused')
  AND NOT a.metadata ? 'instance_of';

-- name: find_addressed_profile :opt
-- A profile that an enqueue without an agent would take. Settings of an earlier box are not the profile's.
SELECT p.name, true AS is_profile, p.updated_at AS since FROM resource.profiles p
WHERE lower(p.name) = lower(:name) AND p.project_id = :project_id
  AND p.settings ->> 'profile_box_id' = p.profile_box_id AND p.settings -> 'instances' = 'true';

-- name: list_addressees :many
-- Both kinds, at most so many of each: agents by id, then profiles by name.
(SELECT a.agent_id AS name, false AS is_profile, a.created_at AS since FROM resource.project_agents a
 WHERE a.project_id COLLATE "C" = :project_id AND a.status IN ('active', 'paused') AND NOT a.metadata ? 'instance_of'
 ORDER BY a.agent_id LIMIT :row_limit::int)
UNION ALL
(SELECT p.name, true, p.updated_at FROM resource.profiles p
 WHERE p.project_id = :project_id AND p.settings ->> 'profile_box_id' = p.profile_box_id
   AND p.settings -> 'instances' = 'true'
 ORDER BY lower(p.name) LIMIT :row_limit::int)
ORDER BY is_profile, name;

-- name: page_addressees :many
-- A page of both kinds with what a stranger may read of them: agents by id, then profiles by name, after one of
-- either kind.
SELECT x.name, x.is_profile, x.since, x.title, x.profile_name, x.output_schema FROM (
    (SELECT a.agent_id AS name, false AS is_profile, a.created_at AS since, a.display_name AS title,
            p.name AS profile_name, a.agent_id AS place,
            CASE WHEN p.settings ->> 'profile_box_id' = p.profile_box_id THEN p.settings -> 'output_schema' END
                AS output_schema
     FROM resource.project_agents a
     LEFT JOIN resource.profiles p ON p.profile_box_id = a.profile_box_id::text AND p.project_id = a.project_id
     WHERE a.project_id COLLATE "C" = :project_id AND a.status IN ('active', 'paused')
       AND NOT a.metadata ? 'instance_of'
       AND :after_profile::text IS NULL AND (:after_agent::text IS NULL OR a.agent_id > :after_agent)
     ORDER BY a.agent_id LIMIT :row_limit::int)
    UNION ALL
    (SELECT p.name, true, p.updated_at, NULL, p.name, lower(p.name), p.settings -> 'output_schema'
     FROM resource.profiles p
     WHERE p.project_id = :project_id AND p.settings ->> 'profile_box_id' = p.profile_box_id
       AND p.settings -> 'instances' = 'true'
       AND (:after_profile::text IS NULL OR lower(p.name) > lower(:after_profile))
     ORDER BY lower(p.name) LIMIT :row_limit::int)) x
ORDER BY x.is_profile, x.place LIMIT :row_limit::int;
