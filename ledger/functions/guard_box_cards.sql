-- Invariant 9: a card enters a box only in the transaction that made the box, or into the output box of a busy head, or
-- through the statement that ends the turn which made the card. Runs once a statement, after all its parts. Its
-- subqueries are in order, each a look-up by key for the box in hand: a plan made for small statements compared each
-- box of a statement with each of its cards. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.guard_box_cards() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    doubtful uuid[];
    refused uuid;
BEGIN
    SELECT array_agg(a.box_id) INTO doubtful FROM (SELECT DISTINCT box_id FROM added) a
    WHERE NOT CASE
        WHEN EXISTS (SELECT FROM public.boxes b WHERE b.box_id = a.box_id AND b.made_by = pg_current_xact_id() OFFSET 0)
            THEN true
        ELSE EXISTS (SELECT FROM state.agent_state_head h WHERE h.output_box_id = a.box_id OFFSET 0) END;
    IF doubtful IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT d.box_id INTO refused FROM unnest(doubtful) d (box_id)
    WHERE NOT EXISTS (
        SELECT FROM added x JOIN public.cards c ON c.card_id = x.card_id
        JOIN state.turn_outcomes o ON o.agent_turn_id = c.metadata ->> 'agent_turn_id'
        WHERE x.box_id = d.box_id AND o.output_box_id = d.box_id AND o.xmin = pg_current_xact_id()::xid OFFSET 0)
    LIMIT 1;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION 'box % is closed: cards enter only the output box of a turn in hand', refused
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER box_cards_guarded AFTER INSERT ON public.box_cards
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION state.guard_box_cards();
