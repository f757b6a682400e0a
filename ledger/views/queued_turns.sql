-- The turns that wait, with what a lease puts on the head, and the box that a turn of a conversation would have if it
-- were leased now.
CREATE OR REPLACE VIEW state.queued_turns AS
SELECT i.inbox_id, i.project_id, i.agent_id, i.agent_turn_id, i.channel_id, i.created_at,
       state.as_uuid(i.payload ->> 'profile_box_id') AS profile_box_id,
       state.as_uuid(i.payload ->> 'context_box_id') AS context_box_id,
       coalesce(state.as_uuid(i.payload ->> 'output_box_id'), (
           SELECT c.output_box_id FROM state.conversations c
           WHERE c.agent_id = i.agent_id AND c.conversation_id = i.payload ->> 'conversation_id'
             AND c.channel_id = i.channel_id
             AND c.project_id = i.project_id)) AS output_box_id,
       split_part(i.context_headers ->> 'traceparent', '-', 2) AS trace_id,
       i.context_headers ->> 'CG-Parent-Step-Id' AS parent_step_id,
       coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0) AS recursion_depth, i.context_headers,
       CASE WHEN state.as_uuid(i.payload ->> 'output_box_id') IS NULL THEN i.payload ->> 'conversation_id'
           END AS conversation_id
FROM state.agent_inbox i
WHERE i.archived_at IS NULL AND i.next_retry_at = 'infinity' AND i.status = 'queued';

COMMENT ON COLUMN state.queued_turns.conversation_id IS 'of a turn whose box its lease resolves';
