-- Notes what turns have that are about to be removed: the boxes that they wrote, and of a conversation all that its
-- turns wrote, the boxes that they read, their conversations, their agents, and the files that are theirs. A profile's
-- box is nobody's. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.note_deleted_turns(deletion text, ids text[]) RETURNS void LANGUAGE sql AS $$
    WITH turns AS MATERIALIZED (
        SELECT i.* FROM state.agent_inbox i
        WHERE i.agent_turn_id = ANY (ids) AND i.message_type IN ('turn', 'ui_action')
    ),
    talks AS MATERIALIZED (
        SELECT DISTINCT t.project_id, t.agent_id, t.channel_id, t.payload ->> 'conversation_id' AS conversation_id
        FROM turns t WHERE t.payload ? 'conversation_id'
    ),
    boxes AS (
        SELECT t.payload ->> 'output_box_id' AS box_id FROM turns t
        UNION
        SELECT s.metadata #>> '{compaction,output_box_id}' FROM state.agent_steps s
        WHERE s.agent_turn_id = ANY (ids) AND s.metadata ? 'compaction'
        UNION
        SELECT o.output_box_id::text FROM state.turn_outcomes o WHERE o.agent_turn_id = ANY (ids)
        UNION
        SELECT c.output_box_id::text FROM talks t JOIN state.conversations c USING (project_id, agent_id, channel_id,
            conversation_id)
        UNION
        SELECT x.payload ->> 'output_box_id' FROM talks t CROSS JOIN LATERAL (
            SELECT i.payload FROM state.agent_inbox i
            WHERE i.agent_id = t.agent_id AND i.payload ->> 'conversation_id' = t.conversation_id
              AND i.channel_id = t.channel_id AND i.project_id = t.project_id
              AND i.message_type IN ('turn', 'ui_action') OFFSET 0) x
    )
    INSERT INTO state.deletion_items (deletion_id, project_id, kind, item_id)
    SELECT d.deletion_id, d.project_id, x.kind, x.item_id FROM state.deletions d CROSS JOIN (
        SELECT 'box' AS kind, lower(b.box_id) AS item_id FROM boxes b WHERE pg_input_is_valid(b.box_id, 'uuid')
        UNION
        SELECT 'context', lower(t.payload ->> 'context_box_id') FROM turns t
        WHERE pg_input_is_valid(t.payload ->> 'context_box_id', 'uuid')
        UNION
        SELECT 'conversation', t.agent_id || '/' || t.channel_id || '/' || t.conversation_id FROM talks t
        UNION
        SELECT 'agent', t.agent_id FROM turns t
        UNION
        SELECT 'file', a.artifact_id FROM turns t
        JOIN resource.artifacts a ON a.project_id = t.project_id AND a.agent_turn_id = t.agent_turn_id) x
    WHERE d.deletion_id = deletion
    ON CONFLICT DO NOTHING
$$;
