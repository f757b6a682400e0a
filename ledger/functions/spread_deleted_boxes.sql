-- Notes the boxes that share a card with a noted one which nothing names, and of which every card is in such boxes
-- alone: copies that nobody uses, such as what a box was made of. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.spread_deleted_boxes(deletion text) RETURNS void LANGUAGE sql AS $$
    WITH noted AS MATERIALIZED (
        SELECT DISTINCT i.item_id::uuid AS box_id, i.project_id FROM state.deletion_items i
        WHERE i.deletion_id = deletion AND i.kind IN ('box', 'context') AND NOT i.is_gone
          AND EXISTS (SELECT FROM state.unused_boxes('infinity', false) u
                      WHERE u.box_id = i.item_id::uuid OFFSET 0)
    ),
    others AS MATERIALIZED (
        SELECT DISTINCT o.box_id, n.project_id FROM noted n JOIN public.box_cards p ON p.box_id = n.box_id
        CROSS JOIN LATERAL (SELECT x.box_id FROM public.box_cards x WHERE x.card_id = p.card_id OFFSET 0) o
        WHERE o.box_id NOT IN (SELECT x.box_id FROM noted x)
    ),
    unnamed AS MATERIALIZED (
        SELECT o.box_id, o.project_id FROM others o
        WHERE EXISTS (SELECT FROM state.unused_boxes('infinity', false) u WHERE u.box_id = o.box_id OFFSET 0)
    )
    INSERT INTO state.deletion_items (deletion_id, project_id, kind, item_id)
    SELECT deletion, o.project_id, 'context', o.box_id::text FROM unnamed o
    WHERE NOT EXISTS (
        SELECT FROM public.box_cards c CROSS JOIN LATERAL (
            SELECT x.box_id FROM public.box_cards x WHERE x.card_id = c.card_id OFFSET 0) x
        WHERE c.box_id = o.box_id AND x.box_id NOT IN (SELECT u.box_id FROM unnamed u UNION ALL
                                                       SELECT n.box_id FROM noted n) OFFSET 0)
    ON CONFLICT DO NOTHING
$$;
