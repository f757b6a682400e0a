-- The result cards that were reported to these turns, and the cards of steers that no step asked with, which are in no
-- box.
CREATE OR REPLACE FUNCTION state.turn_cards(ids text[]) RETURNS TABLE (card_id text) LANGUAGE sql STABLE AS $$
    SELECT c.card_id FROM (
        SELECT DISTINCT i.project_id, i.payload ->> 'tool_result_card_id' AS card_id FROM state.agent_inbox i
        WHERE i.agent_turn_id = ANY (ids) AND i.message_type IN ('tool_result', 'timeout')
        UNION
        SELECT s.project_id, s.steer_id FROM state.steers s WHERE s.agent_turn_id = ANY (ids)) n
    JOIN public.cards c ON c.card_id = n.card_id AND c.tenant_id = n.project_id
    WHERE NOT EXISTS (SELECT FROM public.box_cards b WHERE b.card_id = c.card_id OFFSET 0)
$$;
