-- Removes the conversation that a deletion is of, and, of those in which the turns of an end user were, the ones that
-- no turn is in any more; the others name their last turn that is left. Each is locked before it is judged. False: an
-- enqueue has locked one, which is looked at again.
CREATE OR REPLACE FUNCTION state.remove_deleted_conversations(deletion text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    d state.deletions;
    c state.conversations;
    is_whole boolean := true;
    item record;
    last_turn text;
BEGIN
    SELECT x.* INTO d FROM state.deletions x WHERE x.deletion_id = deletion;
    INSERT INTO state.deletion_items (deletion_id, project_id, kind, item_id)
    SELECT deletion, d.project_id, 'conversation', d.agent_id || '/' || d.channel_id || '/' || d.conversation_id
    WHERE d.kind = 'conversation' ON CONFLICT DO NOTHING;
    FOR item IN
        SELECT i.item_id, split_part(i.item_id, '/', 1) AS agent_id, split_part(i.item_id, '/', 2) AS channel_id,
               split_part(i.item_id, '/', 3) AS conversation_id
        FROM state.deletion_items i
        WHERE i.deletion_id = deletion AND i.kind = 'conversation' AND NOT i.is_gone ORDER BY i.item_id
    LOOP
        SELECT x.* INTO c FROM state.conversations x
        WHERE x.agent_id = item.agent_id AND x.conversation_id = item.conversation_id
          AND x.channel_id = item.channel_id AND x.project_id = d.project_id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            is_whole := is_whole AND NOT EXISTS (
                SELECT FROM state.conversations x
                WHERE x.agent_id = item.agent_id AND x.conversation_id = item.conversation_id
                  AND x.channel_id = item.channel_id AND x.project_id = d.project_id);
            CONTINUE;
        END IF;
        last_turn := (
            SELECT i.agent_turn_id FROM state.agent_inbox i
            WHERE i.agent_id = item.agent_id AND i.payload ->> 'conversation_id' = item.conversation_id
              AND i.channel_id = item.channel_id AND i.project_id = d.project_id
              AND i.message_type IN ('turn', 'ui_action')
            ORDER BY i.conversation_seq DESC LIMIT 1);
        INSERT INTO state.deletion_items (deletion_id, project_id, kind, item_id)
        VALUES (deletion, d.project_id, 'box', c.output_box_id::text) ON CONFLICT DO NOTHING;
        IF last_turn IS NULL THEN
            DELETE FROM state.conversations x WHERE x.output_box_id = c.output_box_id;
        ELSE
            UPDATE state.conversations x SET last_turn_id = last_turn WHERE x.output_box_id = c.output_box_id;
        END IF;
        UPDATE state.deletion_items i SET is_gone = true
        WHERE i.deletion_id = deletion AND i.kind = 'conversation' AND i.item_id = item.item_id;
    END LOOP;
    RETURN is_whole;
END $$;
