-- Gives the boxes of cards whose expiry a statement changes another time: a worker knows the beginnings of boxes, and
-- sees by it that what it knows is old. An append leaves that time alone. The boxes of all cards of the statement are
-- locked in the order of their ids, as hold_boxes does.
CREATE OR REPLACE FUNCTION state.touch_boxes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    touched uuid[];
BEGIN
    SELECT array_agg(x.box_id) INTO touched FROM (
        SELECT b.box_id FROM public.boxes b
        WHERE b.box_id IN (
            SELECT p.box_id FROM new_cards n JOIN old_cards o ON o.card_id = n.card_id
            JOIN public.box_cards p ON p.card_id = n.card_id
            WHERE (o.expires_at, o.deleted_at) IS DISTINCT FROM (n.expires_at, n.deleted_at))
        ORDER BY b.box_id FOR NO KEY UPDATE) x;
    UPDATE public.boxes b SET updated_at = clock_timestamp() WHERE b.box_id = ANY (touched);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER cards_expire AFTER UPDATE ON public.cards
    REFERENCING OLD TABLE AS old_cards NEW TABLE AS new_cards
    FOR EACH STATEMENT EXECUTE FUNCTION state.touch_boxes();
