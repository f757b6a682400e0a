-- Questions to people, as people look at them (protocol §13).

-- name: list_open_interrupts :many
-- Open questions of a project, of one channel or agent if that is given, the newest first, those older than a given one. Whoever waits for
-- what is asked asks this again and again: it reads what is open alone.
SELECT {interrupt_columns} FROM state.interrupts t
{waiting_call}
WHERE t.project_id COLLATE "C" = :project_id AND t.status = 'open' AND {interrupts_of_page}
ORDER BY t.created_at DESC, t.interrupt_id DESC LIMIT :row_limit::int;

-- name: count_open_interrupts :one
-- How many open questions a project has, or one channel of it, counted up to a number.
SELECT count(*)::int AS open FROM (
    SELECT FROM state.interrupts t
    WHERE t.project_id COLLATE "C" = :project_id AND t.status = 'open'
      AND (:channel_id::text IS NULL OR t.channel_id = :channel_id) LIMIT :most::int) counted;

-- name: list_interrupts :many
-- As list_open_interrupts, in any status, or one.
SELECT {interrupt_columns} FROM state.interrupts t
{waiting_call}
WHERE t.project_id COLLATE "C" = :project_id AND (:status::text IS NULL OR t.status = :status) AND {interrupts_of_page}
ORDER BY t.created_at DESC, t.interrupt_id DESC LIMIT :row_limit::int;

-- name: list_interrupts_of_turn :many
-- As list_interrupts, of one turn.
SELECT {interrupt_columns} FROM state.interrupts t
{waiting_call}
WHERE t.agent_turn_id = :agent_turn_id AND t.project_id = :project_id AND (:status::text IS NULL OR t.status = :status)
  AND {interrupts_of_page}
ORDER BY t.created_at DESC, t.interrupt_id DESC LIMIT :row_limit::int;

-- name: get_interrupt :opt
-- A question of a project, of one channel if that is given, with the content of its call's card.
SELECT {interrupt_columns}, c.content FROM state.interrupts t
{waiting_call}
LEFT JOIN LATERAL (
    SELECT k.content FROM public.cards k
    WHERE k.card_id = coalesce(w.call_card_id, t.tool_call_id || '-call') AND k.tenant_id = t.project_id
      AND state.is_alive(k.expires_at, k.deleted_at)) c ON true
WHERE t.interrupt_id = :interrupt_id AND t.project_id = :project_id AND (:channel_id::text IS NULL OR t.channel_id = :channel_id);
