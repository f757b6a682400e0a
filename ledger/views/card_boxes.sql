-- Boxes with their cards, as v1r4 reads and writes them.
CREATE OR REPLACE VIEW public.card_boxes AS
SELECT b.box_id, b.tenant_id,
       (SELECT coalesce(jsonb_agg(c.card_id ORDER BY c.position), '[]') FROM public.box_cards c
           WHERE c.box_id = b.box_id) AS card_ids,
       to_jsonb(b.parent_ids) AS parent_ids, b.updated_at
FROM public.boxes b;
