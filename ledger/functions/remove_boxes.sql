-- Removes these boxes, and the cards that are in no other box.
CREATE OR REPLACE FUNCTION state.remove_boxes(ids uuid[], OUT boxes bigint, OUT cards bigint) LANGUAGE sql AS $$
    WITH
    places AS (DELETE FROM public.box_cards p WHERE p.box_id = ANY (ids) RETURNING p.card_id),
    cards AS (
        DELETE FROM public.cards c USING (SELECT DISTINCT p.card_id FROM places p) held
        WHERE c.card_id = held.card_id AND NOT EXISTS (
            SELECT FROM public.box_cards o WHERE o.card_id = held.card_id
              AND o.box_id <> ALL (ids) OFFSET 0)
        RETURNING 1
    ),
    boxes AS (DELETE FROM public.boxes b WHERE b.box_id = ANY (ids) RETURNING 1)
    SELECT (SELECT count(*) FROM boxes) AS boxes, (SELECT count(*) FROM cards) AS cards
$$;
