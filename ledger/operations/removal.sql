-- The removal of a project (docs/operations.md): its rows in all tables, block by block.

-- name: lock_project :many
-- Makes the agents of a project inactive, so that no turn can be enqueued for them.
UPDATE resource.project_agents a SET status = 'inactive' WHERE a.project_id COLLATE "C" = :project_id
RETURNING a.agent_id;

-- name: list_live_turns :many
-- The queued and active turns of a project.
SELECT h.active_agent_turn_id AS agent_turn_id FROM state.agent_state_head h
WHERE h.project_id = :project_id AND h.output_box_id IS NOT NULL
UNION
SELECT q.agent_turn_id FROM state.queued_turns q WHERE q.project_id = :project_id
ORDER BY 1;

-- name: count_live_threads :one
-- The number of the project's threads that have open messages.
SELECT count(*) AS found FROM state.threads t WHERE t.status = 'open' AND t.project_id = :project_id;

-- name: list_project_tables :many
-- The tables with rows of projects, in the order in which to empty them: the roster first, so that no new rows come.
SELECT t.table_name, t.project_column, t.blocks FROM state.project_tables t
ORDER BY CASE split_part(t.table_name, '.', 1) WHEN 'resource' THEN 0 WHEN 'state' THEN 1 ELSE 2 END, t.table_name;

-- name: count_project_rows :one
-- The number of a project's rows in some blocks of a table.
SELECT state.count_project_rows(:table_name::text::regclass, :project_column::text::name,
                                :project_id, :first_block::bigint, :end_block::bigint) AS found;

-- name: remove_project_rows :one
-- Removes the rows of a project in some blocks of a table.
SELECT state.remove_project_rows(:table_name::text::regclass, :project_column::text::name,
                                 :project_id, :first_block::bigint, :end_block::bigint) AS found;

-- name: remove_project_places :exec
-- Removes the contents of a project's boxes that are in some blocks of the table.
DELETE FROM public.box_cards p USING (
    SELECT b.box_id FROM public.boxes b
    WHERE b.ctid >= format('(%s,0)', :first_block::bigint)::tid AND b.ctid < format('(%s,0)', :end_block::bigint)::tid
      AND b.tenant_id = :project_id {by_key}) gone
WHERE p.box_id = gone.box_id;
