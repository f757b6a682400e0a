-- Notes the turns and threads that a running deletion is of: the turns of the conversation or of the end user, the
-- turns below them, those that run one of them again, and the threads in which one works, with all their turns. What
-- descends from a turn that was removed before is found by what was noted then. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.grow_deletion(deletion text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    d state.deletions;
    added bigint;
    more bigint;
BEGIN
    SELECT x.* INTO d FROM state.deletions x WHERE x.deletion_id = deletion;
    INSERT INTO state.deletion_items (deletion_id, project_id, kind, item_id)
    SELECT deletion, d.project_id, 'turn', i.agent_turn_id FROM state.agent_inbox i
    WHERE d.kind = 'end_user' AND i.project_id COLLATE "C" = d.project_id
      AND (i.payload ->> 'end_user') COLLATE "C" = d.end_user
      AND i.message_type IN ('turn', 'ui_action') AND i.agent_turn_id >= ''
    UNION
    SELECT deletion, d.project_id, 'turn', i.agent_turn_id FROM state.agent_inbox i
    WHERE d.kind = 'conversation' AND i.agent_id = d.agent_id AND i.payload ->> 'conversation_id' = d.conversation_id
      AND i.channel_id = d.channel_id AND i.project_id = d.project_id AND i.message_type IN ('turn', 'ui_action')
    ON CONFLICT DO NOTHING;
    LOOP
        INSERT INTO state.deletion_items (deletion_id, project_id, kind, item_id)
        SELECT deletion, d.project_id, 'turn', x.agent_turn_id FROM state.deletion_items i CROSS JOIN LATERAL (
            SELECT n.agent_turn_id FROM state.turn_nodes n WHERE n.parent_turn_id = i.item_id
            UNION ALL
            SELECT b.agent_turn_id FROM state.agent_inbox b
            WHERE b.context_headers ->> 'CG-Parent-Turn-Id' = i.item_id AND b.context_headers ? 'CG-Parent-Turn-Id'
              AND b.message_type IN ('turn', 'ui_action') AND b.project_id = d.project_id
            UNION ALL
            SELECT b.agent_turn_id FROM state.agent_inbox b
            WHERE b.payload -> 'rerun' ->> 'of' = i.item_id AND b.payload ? 'rerun' AND b.project_id = d.project_id
            OFFSET 0) x
        WHERE i.deletion_id = deletion AND i.kind = 'turn'
        UNION
        SELECT deletion, d.project_id, 'turn', m.agent_turn_id FROM state.deletion_items i
        JOIN state.thread_messages m ON m.thread_id = i.item_id
        WHERE i.deletion_id = deletion AND i.kind = 'thread' AND m.agent_turn_id IS NOT NULL
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS added = ROW_COUNT;
        INSERT INTO state.deletion_items (deletion_id, project_id, kind, item_id)
        SELECT DISTINCT deletion, d.project_id, 'thread', m.thread_id FROM state.deletion_items i
        JOIN state.thread_messages m ON m.agent_turn_id = i.item_id
        WHERE i.deletion_id = deletion AND i.kind = 'turn'
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS more = ROW_COUNT;
        EXIT WHEN added + more = 0;
    END LOOP;
END $$;
