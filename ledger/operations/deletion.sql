-- Deletions of a conversation, or of an end user with all their turns (protocol §6, conversation.delete).

-- name: request_deletion :one
-- Begins a deletion, or finds the one that is running.
SELECT r.verdict, r.deletion_id FROM state.request_deletion(:project_id, :channel_id, :conversation_id::text,
    :agent_id::text, :seen_turn_id::text, :end_user::text, :caller, :deletion_id) r;

-- name: list_running_deletions :many
-- Deletions that are not done, the one that was worked on longest ago first.
SELECT d.deletion_id, d.project_id FROM state.deletions d WHERE d.status = 'running'
ORDER BY d.advanced_at, d.deletion_id LIMIT :row_limit::int;

-- name: advance_deletion :one
-- Does the next piece of a deletion; says what must end first.
SELECT a.phase, a.live FROM state.advance_deletion(:deletion_id, :row_limit::int) a;

-- name: get_deletion :opt
-- A deletion: how far it is, and what it has removed.
SELECT d.deletion_id, d.kind, d.status, d.turns, d.boxes, d.cards, d.emptied, d.requested_by, d.created_at, d.ended_at
FROM state.deletions d WHERE d.deletion_id = :deletion_id AND d.project_id = :project_id;

-- name: find_text :many
-- The tables of which rows of a project hold a text anywhere, and how many rows; read as the catalogue has them.
SELECT t.table_name, f.found FROM state.project_tables t
CROSS JOIN LATERAL (SELECT state.count_rows_with(t.table_name::regclass, t.project_column::name, :project_id,
                                                 :text) AS found) f
WHERE f.found > 0 ORDER BY t.table_name;
