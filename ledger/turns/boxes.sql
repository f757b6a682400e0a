-- The verbs on boxes (protocol §6): box_fork and box_replace.

-- name: fork_box :one
-- Makes a box with the present cards of another, cut where that is; a repeat finds the first one's box.
-- verdict: accepted | duplicate | again (repeat the statement) | the code of a refusal.
WITH
earlier AS MATERIALIZED (
    SELECT b.tenant_id = :project_id AND b.parent_ids = ARRAY[:box_id::uuid] AS same FROM public.boxes b WHERE b.box_id = :new_box_id::uuid
),
source AS MATERIALIZED (  -- locked: retention skips it; if retention has the lock, this waits
    SELECT b.box_id FROM public.boxes b
    WHERE b.box_id = :box_id::uuid AND b.tenant_id = :project_id AND NOT EXISTS (SELECT FROM earlier) FOR KEY SHARE
),
made AS (
    INSERT INTO public.boxes (box_id, tenant_id, parent_ids)
    SELECT :new_box_id::uuid, :project_id, ARRAY[source.box_id] FROM source
    ON CONFLICT DO NOTHING
    RETURNING box_id
),
copied AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT made.box_id, s.position, s.card_id FROM made JOIN public.box_cards s ON s.box_id = :box_id::uuid
),
cut AS (
    INSERT INTO state.memory_cuts (box_id, project_id, position, cut_card_id)
    SELECT made.box_id, :project_id, m.position, m.cut_card_id FROM made JOIN state.memory_cuts m ON m.box_id = :box_id::uuid
)
SELECT CASE
           WHEN EXISTS (SELECT FROM made) THEN 'accepted'
           WHEN (SELECT e.same FROM earlier e) THEN 'duplicate'
           WHEN EXISTS (SELECT FROM earlier) THEN 'correlation_conflict'
           WHEN NOT EXISTS (SELECT FROM source) THEN 'unknown_box'
           ELSE 'again'
       END AS verdict;

-- name: replace_boxes :one
-- Sets those of an agent's pointers that are given. It is outside the gate, so the last statement wins.
-- verdict: accepted | the code of a refusal.
WITH
held AS MATERIALIZED (  -- as in fork_box
    SELECT b.box_id FROM public.boxes b
    WHERE b.box_id = ANY (ARRAY[:memory_box_id::uuid, :output_box_id::uuid]) AND b.tenant_id = :project_id
    ORDER BY b.box_id FOR KEY SHARE
),
plan AS MATERIALIZED (  -- always one row
    SELECT CASE
               WHEN NOT EXISTS (SELECT FROM resource.project_agents a WHERE a.agent_id = :agent_id AND a.project_id = :project_id)
               THEN 'unknown_agent'
               WHEN :memory_box_id::uuid IS NOT NULL AND :memory_box_id::uuid NOT IN (SELECT held.box_id FROM held)
               THEN 'unknown_context_box'
               WHEN :output_box_id::uuid IS NOT NULL AND :output_box_id::uuid NOT IN (SELECT held.box_id FROM held)
               THEN 'unknown_output_box'
               WHEN EXISTS (SELECT FROM held JOIN state.agent_state_head busy ON busy.output_box_id = held.box_id
                            WHERE busy.agent_id <> :agent_id OR busy.project_id <> :project_id) THEN 'output_box_busy'
               ELSE 'accepted'
           END AS verdict
),
pointed AS (
    INSERT INTO state.agent_state_pointers AS p
        (project_id, agent_id, memory_context_box_id, last_output_box_id, replaced_output_box_id)
    SELECT :project_id, :agent_id, :memory_box_id::uuid, :output_box_id::uuid, :output_box_id::uuid FROM plan WHERE plan.verdict = 'accepted'
    ON CONFLICT (agent_id, project_id) DO UPDATE SET
        memory_context_box_id = CASE WHEN :sets_memory::boolean THEN EXCLUDED.memory_context_box_id ELSE p.memory_context_box_id END,
        last_output_box_id = coalesce(EXCLUDED.last_output_box_id, p.last_output_box_id),
        replaced_output_box_id = coalesce(EXCLUDED.replaced_output_box_id, p.replaced_output_box_id),
        updated_at = now()
    RETURNING p.memory_context_box_id, p.last_output_box_id
)
SELECT plan.verdict, pointed.memory_context_box_id::text AS memory_context_box_id, pointed.last_output_box_id::text AS last_output_box_id
FROM plan LEFT JOIN pointed ON true;

-- name: agent_boxes :opt
-- The boxes that an agent's pointers name; no row for an agent that the project does not have.
SELECT p.memory_context_box_id::text AS memory_context_box_id, p.last_output_box_id::text AS last_output_box_id
FROM resource.project_agents a
LEFT JOIN state.agent_state_pointers p ON p.agent_id = a.agent_id AND p.project_id = a.project_id
WHERE a.agent_id = :agent_id AND a.project_id = :project_id;
