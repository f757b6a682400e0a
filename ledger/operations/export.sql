-- All data of a project, table by table, as JSON (docs/operations.md, export). If agents are named: the rows that name
-- one of them, the boxes and cards of their turns, and all of the threads that they worked in.

-- name: begin_export :exec
-- The first statement of the transaction: every table is read as of one moment, and nothing is written.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: tune_export :one
-- Sets for the transaction: plans for the given parameters, which scan a table if most of it is wanted.
SELECT set_config('plan_cache_mode', 'force_custom_plan', true) AS plans,
       set_config('enable_seqscan', 'on', true) AS seqscan, set_config('statement_timeout', '0', true) AS timeout,
       set_config('idle_in_transaction_session_timeout', '0', true) AS idle;

-- name: describe_export :one
-- The moment of the export, and a hash of the schema's files.
SELECT now() AS exported_at, (
    SELECT md5(string_agg(f.name || f.checksum, ' ' ORDER BY f.name)) FROM state.schema_files f) AS schema_hash;

-- name: export_profiles :many
-- The profiles; if agents are named, theirs.
SELECT to_jsonb(x)::text AS row FROM resource.profiles x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR EXISTS (
    SELECT FROM resource.project_agents a
    WHERE a.project_id = x.project_id AND a.profile_box_id = state.as_uuid(x.profile_box_id)
      AND a.agent_id = ANY (:agent_ids)));

-- name: export_project_agents :many
-- The roster, with its metadata.
SELECT to_jsonb(x)::text AS row FROM resource.project_agents x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_projects :many
-- The project as it is listed.
SELECT to_jsonb(x)::text AS row FROM public.projects x WHERE x.project_id = :project_id;

-- name: export_tools :many
-- The tools, which all agents share.
SELECT to_jsonb(x)::text AS row FROM resource.tools x WHERE x.project_id = :project_id;

-- name: export_artifacts :many
-- The files, without their bytes.
SELECT to_jsonb(x)::text AS row FROM resource.artifacts x WHERE x.project_id = :project_id;

-- name: export_agent_state_head :many
-- The heads of the agents.
SELECT to_jsonb(x)::text AS row FROM state.agent_state_head x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_agent_state_pointers :many
-- The pointers of the agents.
SELECT to_jsonb(x)::text AS row FROM state.agent_state_pointers x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_channel_pointers :many
-- The pointers of the agents in each channel.
SELECT to_jsonb(x)::text AS row FROM state.channel_pointers x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_agent_inbox :many
-- The rows of the agents' inboxes.
SELECT to_jsonb(x)::text AS row FROM state.agent_inbox x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_turn_waiting_tools :many
-- The calls that were sent.
SELECT to_jsonb(x)::text AS row FROM state.turn_waiting_tools x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_agent_steps :many
-- The steps that were committed.
SELECT to_jsonb(x)::text AS row FROM state.agent_steps x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_execution_edges :many
-- The execution edges.
SELECT to_jsonb(x)::text AS row FROM state.execution_edges x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL
                                      OR x.source_agent_id = ANY (:agent_ids) OR x.target_agent_id = ANY (:agent_ids));

-- name: export_identity_edges :many
-- The changes of the roster.
SELECT to_jsonb(x)::text AS row FROM state.identity_edges x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL
                                      OR x.source_agent_id = ANY (:agent_ids) OR x.target_agent_id = ANY (:agent_ids));

-- name: export_turn_outcomes :many
-- The outcomes of turns.
SELECT to_jsonb(x)::text AS row FROM state.turn_outcomes x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_steers :many
-- What was said to turns; the text is on the card of the same id.
SELECT to_jsonb(x)::text AS row FROM state.steers x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_call_steps :many
-- What programs recorded under the calls that they ran.
SELECT to_jsonb(x)::text AS row FROM state.call_steps x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_artifact_refs :many
-- Which cards name which files.
SELECT to_jsonb(x)::text AS row FROM state.artifact_refs x WHERE x.project_id = :project_id;

-- name: export_rejections :many
-- The rejections that were recorded.
SELECT to_jsonb(x)::text AS row FROM state.rejections x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.ids ->> 'agent_id' = ANY (:agent_ids));

-- name: export_conversations :many
-- The conversations of the agents.
SELECT to_jsonb(x)::text AS row FROM state.conversations x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_turn_nodes :many
-- The nodes of the agents' turns in their trees.
SELECT to_jsonb(x)::text AS row FROM state.turn_nodes x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR EXISTS (
    SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = x.agent_turn_id
      AND i.project_id = x.project_id AND i.agent_id = ANY (:agent_ids)));

-- name: export_threads :many
-- The threads of listeners.
SELECT to_jsonb(x)::text AS row FROM state.threads x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.thread_id IN (
    SELECT t.thread_id FROM state.agent_threads(:project_id, :agent_ids) t));

-- name: export_thread_segments :many
-- The segments of their chains.
SELECT to_jsonb(x)::text AS row FROM state.thread_segments x JOIN state.threads h ON h.thread_id = x.thread_id
WHERE h.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.thread_id IN (
    SELECT t.thread_id FROM state.agent_threads(:project_id, :agent_ids) t));

-- name: export_thread_messages :many
-- The messages of these threads.
SELECT to_jsonb(x)::text AS row FROM state.thread_messages x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.thread_id IN (
    SELECT t.thread_id FROM state.agent_threads(:project_id, :agent_ids) t));

-- name: export_thread_replies :many
-- The answers to their requests.
SELECT to_jsonb(x)::text AS row FROM state.thread_replies x JOIN state.threads h ON h.thread_id = x.thread_id
WHERE h.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.thread_id IN (
    SELECT t.thread_id FROM state.agent_threads(:project_id, :agent_ids) t));

-- name: export_pmo_batches :many
-- The forks, and the status of each.
SELECT to_jsonb(x)::text AS row FROM state.pmo_batches x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.parent_agent_id = ANY (:agent_ids));

-- name: export_pmo_batch_tasks :many
-- The tasks of these forks.
SELECT to_jsonb(x)::text AS row FROM state.pmo_batch_tasks x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_interrupts :many
-- What the agents' turns asked people, and what was decided.
SELECT to_jsonb(x)::text AS row FROM state.interrupts x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_schedules :many
-- The schedules; if agents are named, those that ask them.
SELECT to_jsonb(x)::text AS row FROM resource.schedules x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.settings ->> 'agent_id' = ANY (:agent_ids));

-- name: export_schedule_firings :many
-- The firings of these schedules.
SELECT to_jsonb(x)::text AS row FROM state.schedule_firings x
JOIN resource.schedules h ON h.project_id = x.project_id AND h.schedule_id = x.schedule_id
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR h.settings ->> 'agent_id' = ANY (:agent_ids));

-- name: export_boxes :many
-- The boxes; if agents are named, those that their turns, their profiles and their pointers name.
SELECT to_jsonb(x)::text AS row FROM public.boxes x
WHERE x.tenant_id = :project_id
  AND (:agent_ids::text[] IS NULL OR x.box_id IN (SELECT b.box_id FROM state.agent_boxes(:project_id, :agent_ids) b));

-- name: export_box_cards :many
-- The contents of the boxes, in order.
SELECT to_jsonb(x)::text AS row FROM public.box_cards x JOIN public.boxes h ON h.box_id = x.box_id
WHERE h.tenant_id = :project_id
  AND (:agent_ids::text[] IS NULL OR x.box_id IN (SELECT b.box_id FROM state.agent_boxes(:project_id, :agent_ids) b));

-- name: export_cards :many
-- The cards with their contents; if agents are named, those in these boxes, those of their turns, and their threads'
-- payloads.
SELECT to_jsonb(x)::text AS row FROM public.cards x
WHERE x.tenant_id = :project_id AND (:agent_ids::text[] IS NULL
    OR x.card_id IN (SELECT p.card_id FROM state.agent_boxes(:project_id, :agent_ids) b
                     JOIN public.box_cards p ON p.box_id = b.box_id)
    OR x.metadata ->> 'agent_turn_id' IN (SELECT i.agent_turn_id FROM state.agent_inbox i
                                          WHERE i.project_id = :project_id AND i.agent_id = ANY (:agent_ids))
    OR x.card_id IN (SELECT m.payload_card_id FROM state.thread_messages m
                     JOIN state.agent_threads(:project_id, :agent_ids) t
                         ON t.thread_id = m.thread_id)
    OR x.card_id IN (SELECT r.payload_card_id FROM state.thread_replies r
                     JOIN state.agent_threads(:project_id, :agent_ids) t
                         ON t.thread_id = r.thread_id));

-- name: export_budgets :many
-- What turns, days and months may spend; of agents, their turns'.
SELECT to_jsonb(x)::text AS row FROM state.budgets x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR EXISTS (
    SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = x.agent_turn_id
      AND i.project_id = x.project_id AND i.agent_id = ANY (:agent_ids)));

-- name: export_budget_reservations :many
-- What attempts at models reserved and used.
SELECT to_jsonb(x)::text AS row FROM state.budget_reservations x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR EXISTS (
    SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = x.agent_turn_id
      AND i.project_id = x.project_id AND i.agent_id = ANY (:agent_ids)));

-- name: export_budget_raises :many
-- What operators gave budgets, or took from them; of agents, those of their turns.
SELECT to_jsonb(x)::text AS row FROM state.budget_raises x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR EXISTS (
    SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = x.budget_id
      AND i.project_id = x.project_id AND i.agent_id = ANY (:agent_ids)));

-- name: export_project_budgets :many
-- What the project may spend; of no agent.
SELECT to_jsonb(x)::text AS row FROM state.project_budgets x
WHERE x.project_id = :project_id AND :agent_ids::text[] IS NULL;

-- name: export_past_costs :many
-- What turns that were removed have cost, of the whole project alone: the sums name no agent.
SELECT to_jsonb(x)::text AS row FROM state.past_costs x
WHERE x.project_id = :project_id AND :agent_ids::text[] IS NULL;

-- name: count_running_deletions :one
-- The deletions of a project that are not done.
SELECT count(*) AS found FROM state.deletions d WHERE d.project_id = :project_id AND d.status = 'running';
