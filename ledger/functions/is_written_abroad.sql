-- Whether another channel writes in a box: its turns do, or a conversation of it is kept there. Volatile, so that who
-- has locked the box sees what others committed before. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.is_written_abroad(project text, channel text, box uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM state.agent_inbox i
        WHERE lower(i.payload ->> 'output_box_id') = box::text AND i.message_type IN ('turn', 'ui_action')
          AND i.project_id = project AND i.channel_id <> channel OFFSET 0)
    OR EXISTS (SELECT FROM state.conversations c WHERE c.output_box_id = box AND c.channel_id <> channel OFFSET 0);
END $$;
