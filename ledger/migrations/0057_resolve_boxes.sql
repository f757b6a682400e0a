-- The box of a turn in a conversation is resolved when the turn is leased, not when it is enqueued (protocol §6, conversations): until
-- then its payload has none, and the conversation's pointer may move.

CREATE OR REPLACE FUNCTION state.may_be_queued(message_type text, agent_turn_id text, next_retry_at timestamptz, payload jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN message_type = 'turn' AND agent_turn_id IS NOT NULL AND next_retry_at = 'infinity'
        AND state.as_uuid(payload ->> 'profile_box_id') IS NOT NULL
        AND state.as_uuid(payload ->> 'context_box_id') IS NOT NULL
        AND (state.as_uuid(payload ->> 'output_box_id') IS NOT NULL OR payload ->> 'conversation_id' IS NOT NULL);
END $$;

-- The box that a conversation's pointer names now. Volatile, so that it sees the newest: a lease holds the agent's head, under whose
-- lock the pointer moves, and its own snapshot may be older than the lock.
CREATE FUNCTION state.conversation_box(project text, agent text, channel text, conversation text) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT c.output_box_id FROM state.conversations c
            WHERE c.agent_id = agent AND c.conversation_id = conversation AND c.channel_id = channel AND c.project_id = project);
END $$;

-- As before, with the box that a turn of a conversation would have if it were leased now.
CREATE OR REPLACE VIEW state.queued_turns AS
SELECT i.inbox_id, i.project_id, i.agent_id, i.agent_turn_id, i.channel_id, i.created_at,
       state.as_uuid(i.payload ->> 'profile_box_id') AS profile_box_id,
       state.as_uuid(i.payload ->> 'context_box_id') AS context_box_id,
       coalesce(state.as_uuid(i.payload ->> 'output_box_id'), (
           SELECT c.output_box_id FROM state.conversations c
           WHERE c.agent_id = i.agent_id AND c.conversation_id = i.payload ->> 'conversation_id' AND c.channel_id = i.channel_id
             AND c.project_id = i.project_id)) AS output_box_id,
       split_part(i.context_headers ->> 'traceparent', '-', 2) AS trace_id,
       i.context_headers ->> 'CG-Parent-Step-Id' AS parent_step_id,
       coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0) AS recursion_depth, i.context_headers,
       CASE WHEN state.as_uuid(i.payload ->> 'output_box_id') IS NULL THEN i.payload ->> 'conversation_id' END AS conversation_id
FROM state.agent_inbox i
WHERE i.archived_at IS NULL AND i.next_retry_at = 'infinity' AND i.status = 'queued';
COMMENT ON COLUMN state.queued_turns.conversation_id IS 'of a turn whose box its lease resolves';

-- A lease also writes the box that it resolved into the row: a trigger does, so that no role needs the right to change payloads.
CREATE OR REPLACE FUNCTION state.fill_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status = 'pending' THEN
        IF NEW.payload ->> 'conversation_id' IS NOT NULL AND NEW.payload ->> 'output_box_id' IS NULL THEN
            NEW.payload := NEW.payload || jsonb_build_object('output_box_id', state.conversation_box(
                NEW.project_id, NEW.agent_id, NEW.channel_id, NEW.payload ->> 'conversation_id'));
        END IF;
        IF NEW.next_retry_at = 'infinity' THEN  -- a v1r4 writer's
            UPDATE state.agent_state_head h SET active_inbox_id = NEW.inbox_id
            WHERE h.agent_id = NEW.agent_id AND h.project_id = NEW.project_id AND h.active_agent_turn_id = NEW.agent_turn_id
              AND h.turn_epoch = NEW.turn_epoch AND h.active_inbox_id IS NULL;
            NEW.next_retry_at := now();
        END IF;
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER lease_filled BEFORE UPDATE ON state.agent_inbox FOR EACH ROW
    WHEN (OLD.status = 'queued') EXECUTE FUNCTION state.fill_lease();

-- As before, by the conversation that the turns name.
CREATE OR REPLACE FUNCTION state.prunable_conversations(before timestamptz) RETURNS TABLE (output_box_id uuid, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT c.output_box_id, c.project_id FROM state.conversations c
    WHERE c.updated_at < before
      AND NOT EXISTS (
          SELECT FROM state.agent_inbox i WHERE i.agent_id = c.agent_id AND i.payload ->> 'conversation_id' = c.conversation_id
            AND i.channel_id = c.channel_id AND i.project_id = c.project_id
            AND i.message_type IN ('turn', 'ui_action') AND NOT EXISTS (
                SELECT FROM state.prunable_turns(before) t WHERE t.agent_turn_id = i.agent_turn_id OFFSET 0) OFFSET 0)
$$;
