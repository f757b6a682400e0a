-- Gives the boxes of a card whose expiry changes another time: a worker knows the beginnings of boxes, and sees by it
-- that what it knows is old. An append leaves that time alone.
CREATE OR REPLACE FUNCTION state.touch_boxes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE public.boxes b SET updated_at = clock_timestamp()
    WHERE b.box_id IN (SELECT p.box_id FROM public.box_cards p WHERE p.card_id = NEW.card_id);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER cards_expire AFTER UPDATE ON public.cards FOR EACH ROW
    WHEN ((OLD.expires_at, OLD.deleted_at) IS DISTINCT FROM (NEW.expires_at, NEW.deleted_at))
    EXECUTE FUNCTION state.touch_boxes();
