-- Begins the deletion of a conversation of a channel, or of an end user: from its commit on nothing new of them is
-- admitted, and the safety net stops and removes what is there (advance_deletion). A repeat while it runs finds it.
-- verdict: accepted | duplicate | the code of a refusal. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.request_deletion(project text, channel text, conversation text, agent text,
    seen_turn text, person text, caller text, new_id text, OUT verdict text, OUT deletion_id text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    names text[];
    running text;
BEGIN
    IF person IS NULL THEN
        names := ARRAY(
            SELECT c.agent_id FROM state.conversations c
            WHERE c.project_id COLLATE "C" = project AND c.conversation_id COLLATE "C" = conversation
              AND c.channel_id = channel AND (agent IS NULL OR c.agent_id = agent)
            ORDER BY c.agent_id FOR UPDATE);
    END IF;
    PERFORM state.lock_deletions(project, true);
    SELECT d.deletion_id INTO running FROM state.deletions d
    WHERE d.project_id = project AND d.status = 'running' AND CASE WHEN person IS NOT NULL THEN d.end_user = person
        ELSE d.conversation_id = conversation AND d.channel_id = channel AND (agent IS NULL OR d.agent_id = agent) END
    LIMIT 1;
    verdict := CASE WHEN cardinality(names) > 1 THEN 'ambiguous'
        WHEN running IS NOT NULL THEN 'duplicate'
        WHEN names = '{}' THEN 'unknown_conversation'
        WHEN person IS NULL AND seen_turn IS NOT NULL AND seen_turn IS DISTINCT FROM (
            SELECT c.last_turn_id FROM state.conversations c
            WHERE c.agent_id = names[1] AND c.conversation_id = conversation AND c.channel_id = channel
              AND c.project_id = project) THEN 'conversation_changed'
        WHEN person IS NOT NULL AND NOT EXISTS (
            SELECT FROM state.agent_inbox i
            WHERE i.project_id COLLATE "C" = project AND (i.payload ->> 'end_user') COLLATE "C" = person
              AND i.message_type IN ('turn', 'ui_action') AND i.agent_turn_id >= '' OFFSET 0) THEN 'unknown_end_user'
        ELSE 'accepted' END;
    deletion_id := coalesce(running, new_id);
    IF verdict = 'accepted' THEN
        INSERT INTO state.deletions (deletion_id, project_id, kind, channel_id, agent_id, conversation_id, end_user,
                                     requested_by)
        VALUES (new_id, project, CASE WHEN person IS NULL THEN 'conversation' ELSE 'end_user' END,
                CASE WHEN person IS NULL THEN channel END, names[1], conversation, person, caller);
        PERFORM state.grow_deletion(new_id);
    END IF;
END $$;
