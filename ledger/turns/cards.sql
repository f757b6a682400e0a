-- Reading and making cards and boxes (protocol §4).

-- name: get_card :opt
-- One card of a project, unless it is expired or deleted, or, where a channel asks, another channel's turn or box_make
-- made it.
SELECT c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata FROM public.cards c
WHERE c.card_id = :card_id AND c.tenant_id = :project_id AND state.is_alive(c.expires_at, c.deleted_at)
  AND (:channel_id::text IS NULL OR (coalesce(c.metadata ->> 'channel_id', :channel_id) = :channel_id AND NOT EXISTS (
      SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = c.metadata ->> 'agent_turn_id'
        AND i.project_id = :project_id
        AND i.message_type IN {turn_types} AND i.channel_id <> :channel_id)));

-- name: box_cards :many
-- The cards of a box in order, without those that are expired or deleted, for each of which there is a row of nulls;
-- one row of nulls for an empty box, no row for an unknown one.
SELECT c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata
FROM public.boxes b
LEFT JOIN public.box_cards p ON p.box_id = b.box_id
LEFT JOIN public.cards c ON c.card_id = p.card_id AND state.is_alive(c.expires_at, c.deleted_at)
WHERE b.box_id = :box_id::uuid AND b.tenant_id = :project_id
ORDER BY p.position;

-- name: page_of_box :many
-- As box_cards: the next cards of a box after a position.
SELECT p.position, c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata
FROM public.boxes b
LEFT JOIN public.box_cards p ON p.box_id = b.box_id AND p.position > :after_position::int
LEFT JOIN public.cards c ON c.card_id = p.card_id AND state.is_alive(c.expires_at, c.deleted_at)
WHERE b.box_id = :box_id::uuid AND b.tenant_id = :project_id
ORDER BY p.position LIMIT :row_limit::int;

-- name: make_box :exec
-- Makes a box with these cards, for callers that build a context of their own.
WITH
box AS (INSERT INTO public.boxes (box_id, tenant_id) VALUES (:box_id::uuid, :project_id) RETURNING box_id),
cards AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_calls, tool_call_id, metadata)
    SELECT c.card_id, :project_id, c.content, c.tool_calls, c.tool_call_id, c.metadata
    FROM unnest(:card_ids::text[], :card_contents::jsonb[], :card_tool_calls::jsonb[], :card_tool_call_ids::text[],
                :card_metadatas::jsonb[]) c (card_id, content, tool_calls, tool_call_id, metadata)
)
INSERT INTO public.box_cards (box_id, position, card_id)
SELECT box.box_id, c.ordinal, c.card_id FROM box
CROSS JOIN unnest(:card_ids::text[]) WITH ORDINALITY c (card_id, ordinal);
