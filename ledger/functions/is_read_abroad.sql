-- Whether a turn of another channel reads a box as its context: it would read what were written there. Volatile, as
-- is_written_abroad.
CREATE OR REPLACE FUNCTION state.is_read_abroad(project text, channel text, box uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM state.agent_inbox i
        WHERE lower(i.payload ->> 'context_box_id') = box::text AND i.message_type IN ('turn', 'ui_action')
          AND i.project_id = project AND i.channel_id <> channel OFFSET 0);
END $$;
