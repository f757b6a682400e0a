-- Profiles, the roster and tools (protocol §4).

-- name: put_profile :one
-- Makes a sys.profile card in a new box, to which the profile of that name and the agents with its old box then point.
-- verdict: created | replaced | again (this statement waited for another put or add_agent, so its snapshot is old).
WITH
held AS MATERIALIZED (
    SELECT p.profile_box_id, p.xmin AS version FROM resource.profiles p
    WHERE lower(p.name) = lower(:name) AND p.project_id = :project_id FOR UPDATE
),
old AS MATERIALIZED (
    SELECT held.profile_box_id FROM held JOIN resource.profiles seen ON lower(seen.name) = lower(:name)
        AND seen.project_id = :project_id
    WHERE seen.xmin = held.version
),
box AS (
    INSERT INTO public.boxes (box_id, tenant_id) SELECT :box_id::uuid, :project_id
    WHERE EXISTS (SELECT FROM old) OR NOT EXISTS (SELECT FROM held) RETURNING box_id
),
card AS (
    INSERT INTO public.cards (card_id, tenant_id, content, metadata)
    SELECT :card_id, :project_id, :content::jsonb, :metadata::jsonb FROM box RETURNING card_id
),
boxed AS (INSERT INTO public.box_cards (box_id, position, card_id)
          SELECT box.box_id, 1, card.card_id FROM box CROSS JOIN card),
repointed AS (
    UPDATE resource.profiles p SET profile_box_id = :box_id, name = :name, worker_target = :worker_target,
                                   tags = :tags::jsonb,
           system_prompt_compiled = :system_prompt, settings = :settings::jsonb, updated_at = now()
    FROM old WHERE p.profile_box_id = old.profile_box_id AND p.project_id = :project_id
),
let_go AS (  -- an enqueue in flight may still name the old box: its age for retention begins now
    UPDATE public.boxes b SET updated_at = now() FROM old WHERE b.box_id = state.as_uuid(old.profile_box_id)
),
made AS (
    INSERT INTO resource.profiles (project_id, profile_box_id, name, worker_target, tags,
                                   system_prompt_compiled, settings)
    SELECT :project_id, :box_id, :name, :worker_target, :tags::jsonb, :system_prompt, :settings::jsonb
    WHERE NOT EXISTS (SELECT FROM held)
    RETURNING 1
),
agents AS (
    UPDATE resource.project_agents a SET profile_box_id = :box_id::uuid
    FROM old WHERE a.profile_box_id = state.as_uuid(old.profile_box_id) AND a.project_id = :project_id RETURNING 1
)
SELECT CASE WHEN EXISTS (SELECT FROM made) THEN 'created' WHEN EXISTS (SELECT FROM old) THEN 'replaced'
            ELSE 'again' END AS verdict,
       (SELECT count(*) FROM agents) AS agents;

-- name: list_profiles :many
-- The profiles of a project, with the number of agents of each.
SELECT p.name, p.profile_box_id, p.worker_target, p.tags, p.updated_at,
       (SELECT count(*) FROM resource.project_agents a
        WHERE a.profile_box_id = state.as_uuid(p.profile_box_id) AND a.project_id = p.project_id) AS agents
FROM resource.profiles p
WHERE p.project_id = :project_id AND (:after::text IS NULL OR lower(p.name) > lower(:after))
ORDER BY lower(p.name) LIMIT :row_limit::int;

-- name: put_agent :one
-- Adds an agent with its head, or gives it another profile and whatever else is given; what is left out stays, a worker
-- target too. The target of an agent that has work is not changed: its turns are another target's. Locks profile, head
-- and agent, in this order.
-- verdict: added | changed | same | again (an enqueue or another put came between) | the code of a refusal.
WITH
profile AS (  -- an update, so that a put that waits for the lock sees that its snapshot is old
    UPDATE resource.profiles p SET name = p.name
    WHERE lower(p.name) = lower(:profile_name) AND p.project_id = :project_id
    RETURNING state.as_uuid(p.profile_box_id) AS profile_box_id, p.worker_target
),
held AS MATERIALIZED (
    SELECT h.status, h.xmin AS version FROM profile CROSS JOIN state.agent_state_head h
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id FOR NO KEY UPDATE OF h
),
known AS MATERIALIZED (
    SELECT a.* FROM profile CROSS JOIN resource.project_agents a
    WHERE a.agent_id = :agent_id AND a.project_id = :project_id AND (SELECT count(*) FROM held) >= 0
    FOR NO KEY UPDATE OF a
),
wanted AS MATERIALIZED (  -- always one row
    SELECT p.profile_box_id, coalesce(:worker_target::text, k.worker_target, p.worker_target) AS worker_target,
           coalesce(:display_name::text, k.display_name) AS display_name, coalesce(:tags::jsonb, k.tags, '[]') AS tags,
           coalesce(k.metadata, '{}') || coalesce(:metadata::jsonb, '{}') AS metadata
    FROM (SELECT) AS always LEFT JOIN profile p ON true LEFT JOIN known k ON true
),
plan AS MATERIALIZED (
    SELECT w.*, CASE
               WHEN w.profile_box_id IS NULL THEN 'unknown_profile'
               WHEN k.agent_id IS NOT NULL AND :only_new THEN 'agent_exists'
               WHEN k.status = 'inactive' THEN 'agent_inactive'
               WHEN k.agent_id IS NULL AND state.is_full('agents', :project_id, :made_by::text, :most::int)
               THEN 'agents_full'
               WHEN k.agent_id IS NULL THEN 'added'
               WHEN (k.profile_box_id, k.worker_target, k.display_name, k.tags, k.metadata)
                    IS NOT DISTINCT FROM (w.profile_box_id, w.worker_target, w.display_name, w.tags,
                                          w.metadata) THEN 'same'
               WHEN k.worker_target = w.worker_target THEN 'changed'
               WHEN (SELECT h.status FROM held h) <> 'idle' OR EXISTS (
                    SELECT FROM state.queued_turns q WHERE q.agent_id = :agent_id
                      AND q.project_id = :project_id) THEN 'agent_busy'
               WHEN NOT EXISTS (SELECT FROM held h JOIN state.agent_state_head seen ON seen.xmin = h.version
                                WHERE seen.agent_id = :agent_id AND seen.project_id = :project_id) THEN 'again'
               ELSE 'changed'
           END AS verdict
    FROM wanted w LEFT JOIN known k ON true
),
added AS (
    INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id, worker_target,
                                         tags, display_name, metadata, made_by)
    SELECT :project_id, :agent_id, p.profile_box_id, p.worker_target, p.tags, p.display_name, p.metadata,
           :made_by::text
    FROM plan p
    WHERE p.verdict = 'added' ON CONFLICT DO NOTHING RETURNING worker_target
),
head AS (
    INSERT INTO state.agent_state_head (project_id, agent_id)
    SELECT :project_id, :agent_id FROM added ON CONFLICT DO NOTHING
),
changed AS (
    UPDATE resource.project_agents a SET profile_box_id = p.profile_box_id,
                                         worker_target = p.worker_target, tags = p.tags,
           display_name = p.display_name, metadata = p.metadata
    FROM plan p WHERE p.verdict = 'changed' AND a.agent_id = :agent_id AND a.project_id = :project_id
    RETURNING a.worker_target
),
edge AS (
    INSERT INTO state.identity_edges (edge_id, project_id, channel_id, action, target_agent_id,
                                      trace_id, parent_step_id, metadata, created_at)
    SELECT :edge_id, :project_id, :channel_id::text, x.action, :agent_id, :trace_id::text,
           :parent_step_id::text, :edge_metadata::jsonb, clock_timestamp()
    FROM (SELECT 'add' AS action FROM added UNION ALL SELECT 'change' FROM changed) x
)
SELECT CASE
           -- by an earlier try of this call
           WHEN e.action IS NOT NULL THEN CASE e.action WHEN 'add' THEN 'added' ELSE 'changed' END
           WHEN plan.verdict = 'added' AND NOT EXISTS (SELECT FROM added) THEN 'again'
           ELSE plan.verdict
       END AS verdict, plan.worker_target
FROM plan LEFT JOIN state.identity_edges e ON e.edge_id = :edge_id;

-- name: set_agent_status :one
-- Sets an agent's status to active, paused or retired, and leaves an identity edge. The head is locked: when this has
-- committed, no lease is under way that saw another status, and a paused head takes none.
-- verdict: changed | same | the code of a refusal.
WITH
held AS MATERIALIZED (
    SELECT h.agent_id FROM state.agent_state_head h
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id FOR NO KEY UPDATE
),
agent AS MATERIALIZED (  -- after the head, as in hold_agent
    SELECT a.status FROM resource.project_agents a
    WHERE a.agent_id = :agent_id AND a.project_id = :project_id AND (SELECT count(*) FROM held) >= 0 FOR NO KEY UPDATE
),
plan AS MATERIALIZED (  -- always one row
    SELECT CASE WHEN agent.status IS NULL THEN 'unknown_agent' WHEN agent.status = 'inactive' THEN 'agent_inactive'
                WHEN agent.status = :status THEN 'same' ELSE 'changed' END AS verdict
    FROM (SELECT) AS always LEFT JOIN agent ON true
),
changed AS (
    UPDATE resource.project_agents a SET status = :status FROM plan
    WHERE plan.verdict = 'changed' AND a.agent_id = :agent_id AND a.project_id = :project_id
),
head AS (
    INSERT INTO state.agent_state_head AS h (project_id, agent_id, paused_at_epoch)
    SELECT :project_id, :agent_id, CASE :status WHEN 'paused' THEN 0 END FROM plan WHERE plan.verdict = 'changed'
    ON CONFLICT (agent_id, project_id) DO UPDATE SET paused_at_epoch = CASE :status WHEN 'paused' THEN h.turn_epoch END
),
edge AS (
    INSERT INTO state.identity_edges (edge_id, project_id, channel_id, action, target_agent_id,
                                      trace_id, parent_step_id, metadata, created_at)
    SELECT :edge_id, :project_id, :channel_id::text, :action, :agent_id, :trace_id::text,
           :parent_step_id::text, :edge_metadata::jsonb, clock_timestamp()
    FROM plan WHERE plan.verdict = 'changed'
)
SELECT CASE WHEN EXISTS (SELECT FROM state.identity_edges e WHERE e.edge_id = :edge_id)
                 THEN 'changed'  -- by an earlier try of this call
            ELSE plan.verdict END AS verdict
FROM plan;

-- name: list_agents :many
-- The agents of a project with the status of their heads.
SELECT a.agent_id, a.worker_target, a.status, a.display_name, p.name AS profile_name,
       coalesce(h.status, 'idle') AS head_status, h.active_agent_turn_id, coalesce(h.turn_epoch, 0) AS turn_epoch,
       (SELECT count(*) FROM state.queued_turns q
        WHERE q.agent_id = a.agent_id AND q.project_id = a.project_id) AS queued
FROM resource.project_agents a
LEFT JOIN resource.profiles p ON p.profile_box_id = a.profile_box_id::text AND p.project_id = a.project_id
LEFT JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = a.project_id
WHERE a.project_id COLLATE "C" = :project_id AND (:after::text IS NULL OR a.agent_id > :after)
ORDER BY a.agent_id LIMIT :row_limit::int;

-- name: hold_agent :opt
-- Locks the agent's row and head until the transaction ends; waits for enqueues that hold the head.
SELECT a.agent_id FROM resource.project_agents a
LEFT JOIN LATERAL (
    SELECT h.agent_id FROM state.agent_state_head h WHERE h.agent_id = a.agent_id AND h.project_id = a.project_id
    FOR UPDATE) h ON true
WHERE a.agent_id = :agent_id AND a.project_id = :project_id FOR UPDATE OF a;

-- name: count_agent_work :one
-- The open work of a locked agent: its active turn, its queued turns, and messages of threads that wait for it.
SELECT (SELECT count(*) FROM state.agent_state_head h
        WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.status <> 'idle') AS live,
       (SELECT count(*) FROM state.agent_inbox i
        WHERE i.agent_id = :agent_id AND i.project_id = :project_id AND i.archived_at IS NULL
          AND i.message_type IN {turn_types} AND i.status = 'queued') AS queued;

-- name: forget_agent :exec
-- Removes a locked agent from the roster, with its memory and its head; the pointer to the box of its last turn is
-- kept.
WITH
agent AS (DELETE FROM resource.project_agents a WHERE a.agent_id = :agent_id AND a.project_id = :project_id),
pointers AS (
    UPDATE state.agent_state_pointers p SET memory_context_box_id = NULL, updated_at = now()
    WHERE p.agent_id = :agent_id AND p.project_id = :project_id
),
channel_pointers AS (
    UPDATE state.channel_pointers p SET memory_context_box_id = NULL, updated_at = now()
    WHERE p.agent_id = :agent_id AND p.project_id = :project_id
),
edge AS (
    INSERT INTO state.identity_edges (edge_id, project_id, action, target_agent_id, metadata)
    VALUES (:edge_id, :project_id, 'remove', :agent_id, :edge_metadata::jsonb)
)
DELETE FROM state.agent_state_head h WHERE h.agent_id = :agent_id AND h.project_id = :project_id;

-- name: head_epoch :opt
-- The epoch of an agent's last lease.
SELECT h.turn_epoch FROM state.agent_state_head h WHERE h.agent_id = :agent_id AND h.project_id = :project_id;

-- name: keep_epoch :exec
-- Makes a new head, so that epochs continue to rise if the agent is added again. An enqueue that had seen the old head
-- finds it gone, is repeated, and is refused because there is no such agent.
INSERT INTO state.agent_state_head (project_id, agent_id, turn_epoch) VALUES (:project_id, :agent_id, :turn_epoch);

-- name: profile_box :opt
-- The box of a profile by its name, whatever the case.
SELECT p.profile_box_id FROM resource.profiles p WHERE lower(p.name) = lower(:name) AND p.project_id = :project_id;

-- name: put_tool :one
-- Adds or replaces a tool of the project; active turns keep the row that they pinned.
INSERT INTO resource.tools AS t (project_id, tool_name, description, parameters, target_subject,
                                 after_execution, options)
VALUES (:project_id, :tool_name, :description, :parameters::jsonb, :target_subject, :after_execution, :options::jsonb)
ON CONFLICT (project_id, tool_name) DO UPDATE SET description = EXCLUDED.description, parameters = EXCLUDED.parameters,
    target_subject = EXCLUDED.target_subject, after_execution = EXCLUDED.after_execution, options = EXCLUDED.options
RETURNING t.xmax = 0 AS created;  -- a row that was there has been locked

-- name: list_tools :many
-- The tools of a project by name.
SELECT t.tool_name, t.description, t.parameters, t.target_subject, t.after_execution, t.options FROM resource.tools t
WHERE t.project_id = :project_id AND (:after::text IS NULL OR t.tool_name > :after)
ORDER BY t.tool_name LIMIT :row_limit::int;

-- name: remove_tool :opt
-- Removes a tool; active turns keep the row that they pinned.
DELETE FROM resource.tools t WHERE t.project_id = :project_id AND t.tool_name = :tool_name RETURNING t.tool_name;
