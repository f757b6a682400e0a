-- The payloads of these threads, which are cards in no box.
CREATE OR REPLACE FUNCTION state.thread_cards(ids text[]) RETURNS TABLE (card_id text) LANGUAGE sql STABLE AS $$
    SELECT c.card_id FROM (
        SELECT m.payload_card_id AS card_id FROM state.thread_messages m WHERE m.thread_id = ANY (ids)
        UNION
        SELECT r.payload_card_id FROM state.thread_messages m JOIN state.thread_replies r ON r.request_id = m.message_id
        WHERE m.thread_id = ANY (ids)) n
    JOIN public.cards c ON c.card_id = n.card_id
    WHERE NOT EXISTS (SELECT FROM public.box_cards b WHERE b.card_id = c.card_id OFFSET 0)
$$;
