-- Cards that expire or are deleted while turns read their boxes (protocol §4.5, §7.2).

-- Whether a card may still be read.
CREATE FUNCTION state.is_alive(expires_at timestamptz, deleted_at timestamptz) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
RETURN deleted_at IS NULL AND coalesce(expires_at > now(), true);

-- A worker knows the beginnings of boxes. Where a card's expiry changes, its boxes get another time, by which the worker sees that
-- what it knows is old. An append leaves that time alone.
CREATE FUNCTION state.touch_boxes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE public.boxes b SET updated_at = clock_timestamp()
    WHERE b.box_id IN (SELECT p.box_id FROM public.box_cards p WHERE p.card_id = NEW.card_id);
    RETURN NULL;
END $$;
CREATE TRIGGER cards_expire AFTER UPDATE ON public.cards FOR EACH ROW
    WHEN ((OLD.expires_at, OLD.deleted_at) IS DISTINCT FROM (NEW.expires_at, NEW.deleted_at))
    EXECUTE FUNCTION state.touch_boxes();
