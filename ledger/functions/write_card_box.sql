-- Writes boxes as v1r4 does, through the view card_boxes: a list of cards that grows at its end.
CREATE OR REPLACE FUNCTION state.write_card_box() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    known integer := 0;
    held bigint;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO public.boxes (box_id, tenant_id, parent_ids)
        SELECT NEW.box_id, NEW.tenant_id, ARRAY(SELECT p.id::uuid
            FROM jsonb_array_elements_text(coalesce(NEW.parent_ids, '[]')) p (id));
    ELSE
        known := jsonb_array_length(OLD.card_ids);
        IF NEW.box_id <> OLD.box_id OR NEW.tenant_id <> OLD.tenant_id OR OLD.card_ids <> (
            SELECT coalesce(jsonb_agg(n.id ORDER BY n.position), '[]')
            FROM jsonb_array_elements(NEW.card_ids) WITH ORDINALITY n (id, position) WHERE n.position <= known) THEN
            RAISE EXCEPTION 'box % only grows: its cards stay, in their order',
            OLD.box_id USING ERRCODE = 'restrict_violation';
        END IF;
        PERFORM FROM state.agent_state_head h WHERE h.output_box_id = OLD.box_id FOR NO KEY UPDATE;
        UPDATE public.boxes b SET updated_at = clock_timestamp() WHERE b.box_id = OLD.box_id;
    END IF;
    SELECT coalesce(max(c.position), 0) INTO held FROM public.box_cards c WHERE c.box_id = NEW.box_id;
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT NEW.box_id, held + n.position - known, n.id
    FROM jsonb_array_elements_text(coalesce(NEW.card_ids, '[]')) WITH ORDINALITY n (id, position)
    WHERE n.position > known;
    -- a turn of ours looks anew
    UPDATE state.agent_state_head h SET output_position = held + jsonb_array_length(NEW.card_ids) - known
    WHERE h.output_box_id = NEW.box_id AND h.active_inbox_id IS NOT NULL;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER card_boxes_written INSTEAD OF INSERT OR UPDATE ON public.card_boxes
    FOR EACH ROW EXECUTE FUNCTION state.write_card_box();
