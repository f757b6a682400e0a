-- Empties what the turns of a deleted end user wrote into a box that stays, since a conversation there is others', too:
-- the card keeps its place, without content, and is read by no turn from then on. Returns how many. What is only in
-- boxes that others read stays as it is.
CREATE OR REPLACE FUNCTION state.empty_deleted_cards(deletion text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    written text[];
    emptied bigint;
BEGIN
    written := ARRAY(
        SELECT DISTINCT c.card_id FROM state.deletion_items b
        JOIN state.deletions d ON d.deletion_id = b.deletion_id AND d.kind = 'end_user'
        JOIN public.box_cards p ON p.box_id = b.item_id::uuid
        JOIN public.cards c ON c.card_id = p.card_id
        JOIN state.deletion_items t ON t.deletion_id = b.deletion_id AND t.kind = 'turn'
            AND t.item_id = c.metadata ->> 'agent_turn_id'
        WHERE b.deletion_id = deletion AND b.kind = 'box');
    PERFORM state.note_deleted_files(deletion, written);
    UPDATE public.cards c SET content = '{"__type__": "TextContent", "text": ""}', tool_calls = NULL,
        tool_call_id = NULL, deleted_at = now(), metadata = jsonb_build_object('type', c.metadata -> 'type', 'role',
            c.metadata -> 'role', 'author_id', 'system', 'created_at', c.metadata -> 'created_at')
    WHERE c.card_id = ANY (written);
    GET DIAGNOSTICS emptied = ROW_COUNT;
    RETURN emptied;
END $$;
