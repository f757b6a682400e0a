-- Completes a lease: the inbox row gets the box that the lease resolved (a trigger writes it, so that no role needs the
-- right to change payloads). A v1r4 lease makes a queued row pending, and knows neither a retry clock nor
-- active_inbox_id; no lease of ours leaves a row at 'infinity'.
CREATE OR REPLACE FUNCTION state.fill_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status = 'pending' THEN
        IF NEW.payload ->> 'conversation_id' IS NOT NULL AND NEW.payload ->> 'output_box_id' IS NULL THEN
            NEW.payload := NEW.payload || jsonb_build_object('output_box_id', state.conversation_box(
                NEW.project_id, NEW.agent_id, NEW.channel_id, NEW.payload ->> 'conversation_id'));
        END IF;
        IF NEW.next_retry_at = 'infinity' THEN  -- a v1r4 writer's
            UPDATE state.agent_state_head h SET active_inbox_id = NEW.inbox_id
            WHERE h.agent_id = NEW.agent_id AND h.project_id = NEW.project_id
              AND h.active_agent_turn_id = NEW.agent_turn_id
              AND h.turn_epoch = NEW.turn_epoch AND h.active_inbox_id IS NULL;
            NEW.next_retry_at := now();
        END IF;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER lease_filled BEFORE UPDATE ON state.agent_inbox FOR EACH ROW
    WHEN (OLD.status = 'queued') EXECUTE FUNCTION state.fill_lease();
