-- Empties an idle head: before each lease a v1r4 worker inserts one that names the turn's boxes, and its API one that
-- names a channel. The row is checked even where the head is there.
CREATE OR REPLACE FUNCTION state.empty_idle_head() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.context_box_id := NULL;
    NEW.output_box_id := NULL;
    NEW.active_channel_id := NULL;
    NEW.trace_id := NULL;
    NEW.parent_step_id := NULL;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER idle_head_emptied BEFORE INSERT ON state.agent_state_head FOR EACH ROW
    WHEN (NEW.status = 'idle' AND (NEW.context_box_id IS NOT NULL OR NEW.output_box_id IS NOT NULL
        OR NEW.active_channel_id IS NOT NULL))
    EXECUTE FUNCTION state.empty_idle_head();
