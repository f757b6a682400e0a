-- Whether a deletion of this conversation, of this end user, or of the turn that something descends from is running:
-- then nothing new of it is admitted. The caller has locked the conversation, or the project's deletions
-- (lock_deletions), so that the deletion either sees what the caller commits, or is seen. OFFSET 0: see
-- prunable_threads.
CREATE OR REPLACE FUNCTION state.is_being_deleted(project text, channel text, agent text, conversation text,
    person text, parent text) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM state.deletions d WHERE d.project_id = project AND d.status = 'running'
          AND (d.end_user = person
               OR (d.conversation_id = conversation AND d.channel_id = channel AND d.agent_id = agent)
               OR EXISTS (SELECT FROM state.deletion_items i
                          WHERE i.item_id = parent AND i.kind = 'turn' AND i.deletion_id = d.deletion_id OFFSET 0)))
$$;
