-- The profile in a box, as it was put.
CREATE OR REPLACE FUNCTION state.profile_in(project text, box uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT c.content -> 'data' FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
    WHERE b.box_id = box AND c.tenant_id = project AND c.metadata ->> 'type' = 'sys.profile'
    ORDER BY b.position DESC LIMIT 1
$$;
