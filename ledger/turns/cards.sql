-- Reading and making cards and boxes (protocol §4).

-- name: get_card :opt
-- One card of a project.
SELECT c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata FROM public.cards c
WHERE c.card_id = :card_id AND c.tenant_id = :project_id AND c.deleted_at IS NULL;

-- name: box_cards :many
-- The cards of a box in order, or those that turns read of it (:from_cut); one row of nulls if there are none, no row for an unknown box.
SELECT c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata
FROM public.boxes b
LEFT JOIN public.box_cards p ON p.box_id = b.box_id
    AND p.position >= CASE WHEN :from_cut::boolean THEN coalesce((SELECT m.position FROM state.memory_cuts m WHERE m.box_id = b.box_id), 0) ELSE 0 END
LEFT JOIN public.cards c ON c.card_id = p.card_id
WHERE b.box_id = :box_id::uuid AND b.tenant_id = :project_id
ORDER BY p.position;

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
SELECT box.box_id, c.ordinal, c.card_id FROM box CROSS JOIN unnest(:card_ids::text[]) WITH ORDINALITY c (card_id, ordinal);
