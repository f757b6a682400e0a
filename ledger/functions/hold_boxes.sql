-- Locks the boxes of a request, in the order of their ids, so that two requests never wait for one another; returns
-- those that the project has. One that is written is locked harder than one that is read: of two channels that name a
-- box which nobody has, and one of which writes there, the second waits for the first, and sees its turn then. Readers
-- do not wait for one another, but for the first one of a box that a caller made, who records its use (unused_of).
-- Retention skips what is locked; if retention has the lock, this waits.
CREATE OR REPLACE FUNCTION state.hold_boxes(project text, reads uuid[], writes uuid[]) RETURNS TABLE (box_id uuid)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    named uuid;
BEGIN
    FOR named IN SELECT DISTINCT n.id FROM unnest(reads || writes) n (id) WHERE n.id IS NOT NULL ORDER BY n.id LOOP
        IF named = ANY (writes)
            OR EXISTS (SELECT FROM public.boxes b WHERE b.box_id = named AND b.unused_of IS NOT NULL) THEN
            PERFORM FROM public.boxes b WHERE b.box_id = named AND b.tenant_id = project FOR NO KEY UPDATE;
        ELSE
            PERFORM FROM public.boxes b WHERE b.box_id = named AND b.tenant_id = project FOR SHARE;
        END IF;
        IF FOUND THEN
            RETURN QUERY SELECT named;
        END IF;
    END LOOP;
END $$;
