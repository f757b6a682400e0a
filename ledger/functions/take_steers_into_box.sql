-- The steers that a step asks the model with, in order, which it puts behind the last card of its box: those that its
-- first attempt takes, or an earlier attempt of it took. The caller holds the head, and a function sees what was
-- committed before it had that.
CREATE OR REPLACE FUNCTION state.take_steers_into_box(turn text, step text, first boolean, box uuid)
RETURNS TABLE (seq bigint, card_id text, content jsonb, metadata jsonb, expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last bigint;
    placed bigint;
BEGIN
    IF first THEN
        UPDATE state.steers s SET status = 'taken', step_id = step
        WHERE s.agent_turn_id = turn AND s.status = 'waiting' AND s.due;
    END IF;
    SELECT greatest(max(b.position), (SELECT h.output_position FROM state.agent_state_head h
        WHERE h.output_box_id = box), 0) INTO last
    FROM public.box_cards b WHERE b.box_id = box;
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT box, last + row_number() OVER (ORDER BY s.seq), s.steer_id FROM state.steers s
    WHERE s.agent_turn_id = turn AND s.status = 'taken' AND s.step_id = step
      AND NOT EXISTS (SELECT FROM public.box_cards b WHERE b.card_id = s.steer_id AND b.box_id = box);
    GET DIAGNOSTICS placed = ROW_COUNT;
    IF placed > 0 THEN  -- a stop that waits for the head, and writes to the box, does not see the cards
        UPDATE state.agent_state_head h SET output_position = last + placed WHERE h.output_box_id = box;
    END IF;
    RETURN QUERY SELECT s.seq, c.card_id, c.content, c.metadata, c.expires_at FROM state.steers s
        JOIN public.cards c ON c.card_id = s.steer_id AND c.tenant_id = s.project_id
            AND state.is_alive(c.expires_at, c.deleted_at)
        WHERE s.agent_turn_id = turn AND s.status = 'taken' AND s.step_id = step ORDER BY s.seq;
END $$;
