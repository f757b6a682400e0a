-- Everything that is a project's, table by table, as JSON (docs/operations.md, export). With agents named: the rows that name one of
-- them, the turns' boxes and cards, and the whole of the threads that they worked in.

-- name: begin_export :exec
-- The first statement of its transaction: every table is read as it was at one moment, and nothing is written.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: tune_export :one
-- Until the transaction ends: plans made for these parameters, that read a table through where most of it is wanted.
SELECT set_config('plan_cache_mode', 'force_custom_plan', true) AS plans, set_config('enable_seqscan', 'on', true) AS seqscan,
       set_config('statement_timeout', '0', true) AS timeout, set_config('idle_in_transaction_session_timeout', '0', true) AS idle;

-- name: describe_export :one
-- The moment that the export shows, and the version of the tables.
SELECT now() AS exported_at, (SELECT max(m.name) FROM state.migrations m) AS migration;

-- name: export_profiles :many
-- The profiles; of agents, those that they have.
SELECT to_jsonb(x)::text AS row FROM resource.profiles x WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR EXISTS (
    SELECT FROM resource.project_agents a
    WHERE a.project_id = x.project_id AND a.profile_box_id = state.as_uuid(x.profile_box_id) AND a.agent_id = ANY (:agent_ids)));

-- name: export_project_agents :many
-- The roster, with its metadata.
SELECT to_jsonb(x)::text AS row FROM resource.project_agents x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_tools :many
-- The tools, which all agents share.
SELECT to_jsonb(x)::text AS row FROM resource.tools x WHERE x.project_id = :project_id;

-- name: export_agent_state_head :many
-- Where each agent stands.
SELECT to_jsonb(x)::text AS row FROM state.agent_state_head x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_agent_state_pointers :many
-- What each agent remembers.
SELECT to_jsonb(x)::text AS row FROM state.agent_state_pointers x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_agent_inbox :many
-- Every request and every receipt.
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
-- Who asked whom, and who answered.
SELECT to_jsonb(x)::text AS row FROM state.execution_edges x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.source_agent_id = ANY (:agent_ids) OR x.target_agent_id = ANY (:agent_ids));

-- name: export_identity_edges :many
-- Who added whom to the roster.
SELECT to_jsonb(x)::text AS row FROM state.identity_edges x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.source_agent_id = ANY (:agent_ids) OR x.target_agent_id = ANY (:agent_ids));

-- name: export_turn_outcomes :many
-- How turns ended.
SELECT to_jsonb(x)::text AS row FROM state.turn_outcomes x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_rejections :many
-- What was refused.
SELECT to_jsonb(x)::text AS row FROM state.rejections x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.ids ->> 'agent_id' = ANY (:agent_ids));

-- name: export_threads :many
-- The conversations.
SELECT to_jsonb(x)::text AS row FROM state.threads x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.thread_id IN (SELECT t.thread_id FROM state.agent_threads(:project_id, :agent_ids) t));

-- name: export_thread_segments :many
-- The segments of their chains.
SELECT to_jsonb(x)::text AS row FROM state.thread_segments x JOIN state.threads h ON h.thread_id = x.thread_id
WHERE h.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.thread_id IN (SELECT t.thread_id FROM state.agent_threads(:project_id, :agent_ids) t));

-- name: export_thread_messages :many
-- The messages of these threads.
SELECT to_jsonb(x)::text AS row FROM state.thread_messages x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.thread_id IN (SELECT t.thread_id FROM state.agent_threads(:project_id, :agent_ids) t));

-- name: export_thread_replies :many
-- The answers to their requests.
SELECT to_jsonb(x)::text AS row FROM state.thread_replies x JOIN state.threads h ON h.thread_id = x.thread_id
WHERE h.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.thread_id IN (SELECT t.thread_id FROM state.agent_threads(:project_id, :agent_ids) t));

-- name: export_pmo_batches :many
-- Forks, and where each stands.
SELECT to_jsonb(x)::text AS row FROM state.pmo_batches x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.parent_agent_id = ANY (:agent_ids));

-- name: export_pmo_batch_tasks :many
-- The tasks of these forks.
SELECT to_jsonb(x)::text AS row FROM state.pmo_batch_tasks x
WHERE x.project_id = :project_id AND (:agent_ids::text[] IS NULL OR x.agent_id = ANY (:agent_ids));

-- name: export_boxes :many
-- The boxes; of agents, those that their turns, their profile and their memory name.
SELECT to_jsonb(x)::text AS row FROM public.boxes x
WHERE x.tenant_id = :project_id AND (:agent_ids::text[] IS NULL OR x.box_id IN (SELECT b.box_id FROM state.agent_boxes(:project_id, :agent_ids) b));

-- name: export_box_cards :many
-- What is in them, in order.
SELECT to_jsonb(x)::text AS row FROM public.box_cards x JOIN public.boxes h ON h.box_id = x.box_id
WHERE h.tenant_id = :project_id AND (:agent_ids::text[] IS NULL OR x.box_id IN (SELECT b.box_id FROM state.agent_boxes(:project_id, :agent_ids) b));

-- name: export_cards :many
-- The cards, contents and all; of agents, those in these boxes, those that their turns made, and what their threads say.
SELECT to_jsonb(x)::text AS row FROM public.cards x
WHERE x.tenant_id = :project_id AND (:agent_ids::text[] IS NULL
    OR x.card_id IN (SELECT p.card_id FROM state.agent_boxes(:project_id, :agent_ids) b JOIN public.box_cards p ON p.box_id = b.box_id)
    OR x.metadata ->> 'agent_turn_id' IN (SELECT i.agent_turn_id FROM state.agent_inbox i
                                          WHERE i.project_id = :project_id AND i.agent_id = ANY (:agent_ids))
    OR x.card_id IN (SELECT m.payload_card_id FROM state.thread_messages m JOIN state.agent_threads(:project_id, :agent_ids) t
                         ON t.thread_id = m.thread_id)
    OR x.card_id IN (SELECT r.payload_card_id FROM state.thread_replies r JOIN state.agent_threads(:project_id, :agent_ids) t
                         ON t.thread_id = r.thread_id));
