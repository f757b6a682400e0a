-- The audit's rules on conversations and instances of profiles.

-- name: conversation_keeps_its_box :many
-- Protocol §6 conversations: every turn of a conversation is its agent's and channel's, writes into its box, and remembers.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'agent_turn_id', i.agent_turn_id,
                          'box_id', i.payload ->> 'output_box_id') AS ids,
       CASE WHEN c.output_box_id IS NULL THEN 'the turn names a conversation that is not there'
            WHEN c.output_box_id IS DISTINCT FROM state.as_uuid(i.payload ->> 'output_box_id') THEN 'the turn writes into another box than its conversation'
            ELSE 'the turn is in a conversation and does not remember' END AS detail
FROM state.agent_inbox i
LEFT JOIN state.conversations c ON c.agent_id = i.agent_id AND c.conversation_id = i.payload ->> 'conversation_id'
    AND c.channel_id = i.channel_id AND c.project_id = i.project_id
WHERE i.message_type = 'turn' AND i.request_digest IS NOT NULL AND i.payload ? 'conversation_id'
  AND (c.output_box_id IS DISTINCT FROM state.as_uuid(i.payload ->> 'output_box_id')
       OR i.payload -> 'runtime_config' -> 'remember' IS DISTINCT FROM 'true')
  AND (:since::timestamptz IS NULL OR i.created_at >= :since)
  AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: conversation_without_a_box :many
-- Protocol §4.2: the box of a conversation is a box of its project. For a window: of the conversations that its turns name.
SELECT jsonb_build_object('project_id', c.project_id, 'agent_id', c.agent_id, 'agent_turn_id', c.last_turn_id, 'box_id', c.output_box_id) AS ids,
       'the box of the conversation is no box of the project' AS detail
FROM (
    SELECT c.* FROM state.conversations c WHERE :since::timestamptz IS NULL
    UNION ALL
    SELECT c.* FROM (
        SELECT DISTINCT i.agent_id, i.payload ->> 'conversation_id' AS conversation_id, i.channel_id, i.project_id FROM state.agent_inbox i
        WHERE i.created_at >= :since AND i.payload ? 'conversation_id' AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)) i
    JOIN state.conversations c USING (agent_id, conversation_id, channel_id, project_id)
) c
LEFT JOIN public.boxes b ON b.box_id = c.output_box_id AND b.tenant_id = c.project_id
WHERE b.box_id IS NULL AND (:project_id::text IS NULL OR c.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: sleeping_instances_have_no_turns :many
-- Protocol §6 conversations: an instance that is dormant has no turn in hand and none that waits.
SELECT jsonb_build_object('project_id', a.project_id, 'agent_id', a.agent_id, 'agent_turn_id', h.active_agent_turn_id) AS ids,
       CASE WHEN h.status <> 'idle' THEN format('the agent is dormant and its head %s', h.status) ELSE 'the agent is dormant and has a turn that waits' END AS detail
FROM resource.project_agents a LEFT JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = a.project_id
WHERE a.status = 'dormant' AND (h.status <> 'idle' OR EXISTS (
    SELECT FROM state.queued_turns q WHERE q.agent_id = a.agent_id AND q.project_id = a.project_id))
  AND (:project_id::text IS NULL OR a.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;
