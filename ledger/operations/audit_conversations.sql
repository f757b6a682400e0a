-- The audit's rules on conversations and instances of profiles.

-- name: conversation_keeps_its_box :many
-- Protocol §6 conversations: every turn of a conversation is its agent's and channel's, and remembers; it has a box
-- since its lease, which its conversation's pointer named then: the one that it names now, or one from which that came.
-- Of a window the boxes are followed back to the first one from before it, and a line in which retention removed a box
-- is not judged.
WITH RECURSIVE said AS MATERIALIZED (
    SELECT i.project_id, i.agent_id, i.channel_id, i.payload ->> 'conversation_id' AS conversation_id, i.agent_turn_id,
           state.as_uuid(i.payload ->> 'output_box_id') AS box_id, i.turn_epoch,
           i.payload -> 'runtime_config' -> 'remember' AS remember
    FROM state.agent_inbox i
    WHERE i.message_type = 'turn' AND i.request_digest IS NOT NULL AND i.payload ? 'conversation_id'
      AND (:since::timestamptz IS NULL OR i.created_at >= :since)
      AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
),
line AS (
    SELECT c.project_id, c.agent_id, c.channel_id, c.conversation_id, c.output_box_id AS box_id
    FROM (SELECT DISTINCT s.project_id, s.agent_id, s.channel_id, s.conversation_id FROM said s) s
    JOIN state.conversations c USING (project_id, agent_id, channel_id, conversation_id)
    UNION
    SELECT l.project_id, l.agent_id, l.channel_id, l.conversation_id, p.box_id FROM line l
    JOIN public.boxes b ON b.box_id = l.box_id AND (:since::timestamptz IS NULL OR b.created_at >= :since)
    CROSS JOIN unnest(b.parent_ids) p (box_id)
)
SELECT jsonb_build_object('project_id', s.project_id, 'agent_id', s.agent_id, 'agent_turn_id', s.agent_turn_id,
                          'box_id', s.box_id) AS ids,
       CASE WHEN NOT x.is_there THEN 'the turn names a conversation that is not there'
            WHEN s.remember IS DISTINCT FROM 'true' THEN 'the turn is in a conversation and does not remember'
            WHEN s.turn_epoch = 0 THEN 'the turn has a box of its conversation before its lease'
            WHEN s.box_id IS NULL THEN 'the turn was leased and names no box'
            ELSE 'the turn writes into another box than its conversation' END AS detail
FROM said s CROSS JOIN LATERAL (
    SELECT count(*) > 0 AS is_there, coalesce(bool_or(l.box_id = s.box_id), false) AS is_its,
           bool_or(NOT EXISTS (SELECT FROM public.boxes b WHERE b.box_id = l.box_id)) AND count(*) > 1 AS is_broken
    FROM line l WHERE l.agent_id = s.agent_id AND l.conversation_id = s.conversation_id AND l.channel_id = s.channel_id
      AND l.project_id = s.project_id) x
WHERE NOT x.is_there OR s.remember IS DISTINCT FROM 'true' OR (s.turn_epoch = 0) <> (s.box_id IS NULL)
   OR (s.turn_epoch > 0 AND NOT x.is_its AND NOT x.is_broken)
ORDER BY ids LIMIT :row_limit::int;

-- name: conversation_without_a_box :many
-- Protocol §4.2: the box of a conversation is a box of its project. For a window: of the conversations that its turns
-- name.
SELECT jsonb_build_object('project_id', c.project_id, 'agent_id', c.agent_id, 'agent_turn_id', c.last_turn_id,
                          'box_id', c.output_box_id) AS ids,
       'the box of the conversation is no box of the project' AS detail
FROM (
    SELECT c.* FROM state.conversations c WHERE :since::timestamptz IS NULL
    UNION ALL
    SELECT c.* FROM (
        SELECT DISTINCT i.agent_id, i.payload ->> 'conversation_id' AS conversation_id, i.channel_id, i.project_id
        FROM state.agent_inbox i
        WHERE i.created_at >= :since AND i.payload ? 'conversation_id'
          AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)) i
    JOIN state.conversations c USING (agent_id, conversation_id, channel_id, project_id)
) c
LEFT JOIN public.boxes b ON b.box_id = c.output_box_id AND b.tenant_id = c.project_id
WHERE b.box_id IS NULL AND (:project_id::text IS NULL OR c.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: sleeping_instances_have_no_turns :many
-- Protocol §6 conversations: an instance that is dormant has no turn in hand and none that waits.
SELECT jsonb_build_object('project_id', a.project_id, 'agent_id', a.agent_id,
                          'agent_turn_id', h.active_agent_turn_id) AS ids,
       CASE WHEN h.status <> 'idle' THEN format('the agent is dormant and its head %s', h.status)
            ELSE 'the agent is dormant and has a turn that waits' END AS detail
FROM resource.project_agents a LEFT JOIN state.agent_state_head h ON h.agent_id = a.agent_id
    AND h.project_id = a.project_id
WHERE a.status = 'dormant' AND (h.status <> 'idle' OR EXISTS (
    SELECT FROM state.queued_turns q WHERE q.agent_id = a.agent_id AND q.project_id = a.project_id))
  AND (:project_id::text IS NULL OR a.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;
