-- Conversations as people read them: a list with what was said last, and the turns of one with all that was said
-- (protocol §14).

-- name: list_recent_conversations :many
-- variant: list_recent_conversations_of_agent, without any_agent
-- variant: list_recent_conversations_of_channel, without any_channel
-- variant: list_recent_conversations_of_agent_in_channel, without any_agent, any_channel
-- The conversations that a project's newest turns are in, of one channel or agent if that is given, the last used
-- first. How many turns are looked through is given: an index of when a conversation was last used would make each
-- enqueue write it.
SELECT t.agent_id, t.conversation_id, t.channel_id FROM (
    SELECT i.created_at, i.agent_id, i.channel_id, i.payload ->> 'conversation_id' AS conversation_id
    FROM state.agent_inbox i
    WHERE i.project_id COLLATE "C" = :project_id AND i.message_type IN {turn_types}
-- only for any_channel
      AND (:channel_id::text IS NULL OR i.channel_id = :channel_id)
-- else
      AND i.channel_id COLLATE "C" = :channel_id AND i.agent_turn_id >= ''
-- end
-- only for any_agent
      AND (:agent_id::text IS NULL OR i.agent_id = :agent_id)
-- else
      AND i.agent_id COLLATE "C" = :agent_id AND i.agent_turn_id >= ''
-- end
    ORDER BY i.created_at DESC LIMIT :looked_through::int) t
WHERE t.conversation_id IS NOT NULL
GROUP BY t.agent_id, t.conversation_id, t.channel_id ORDER BY max(t.created_at) DESC LIMIT :row_limit::int;

-- name: list_chats :many
-- These conversations, each with the beginning of what was asked last, and where that turn stands.
SELECT c.conversation_id, c.agent_id, c.channel_id, c.output_box_id::text AS output_box_id,
       c.turn_count, c.last_turn_id, c.created_at,
       c.updated_at, left({instruction_of(i)}, 300) AS asked, {turn_status} AS status
FROM unnest(:agent_ids::text[], :conversation_ids::text[],
            :channel_ids::text[]) n (agent_id, conversation_id, channel_id)
CROSS JOIN LATERAL (
    SELECT x.* FROM state.conversations x
    WHERE x.agent_id = n.agent_id AND x.conversation_id = n.conversation_id
      AND x.channel_id = n.channel_id AND x.project_id = :project_id
    LIMIT 1) c
LEFT JOIN LATERAL (
    SELECT x.* FROM state.agent_inbox x WHERE x.agent_turn_id = c.last_turn_id
      AND x.project_id = :project_id AND x.message_type IN {turn_types}
    LIMIT 1) i ON true
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id
LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
    AND h.active_agent_turn_id = i.agent_turn_id;

-- name: find_kept_conversations :many
-- The conversations of a name in a channel, those of no agent too, with what clients keep with them.
SELECT nullif(c.agent_id, '') AS agent_id, c.channel_id, c.conversation_id,
       c.output_box_id::text AS output_box_id, c.created_at, coalesce(c.notes, '{}') AS notes
FROM state.conversations c
WHERE c.project_id COLLATE "C" = :project_id AND c.conversation_id COLLATE "C" = :conversation_id
  AND c.channel_id = :channel_id
ORDER BY c.agent_id LIMIT :row_limit::int;

-- name: list_chat_turns :many
-- The last turns of a conversation, those before another one if that is given, in its order, each with what was asked
-- and where it stands: all that was asked, also before a compaction, and what was rolled back.
SELECT t.agent_turn_id, t.created_at, t.status, t.started_at, t.ended_at, t.error_code,
       t.error, t.deliverable_card_id, t.asked, t.action_tool,
       t.requester, t.waiting_tool_count, t.is_paused, t.rolled_back
FROM (
    SELECT i.agent_turn_id, i.created_at, i.conversation_seq, {turn_status} AS status,
           coalesce(o.started_at, h.started_at) AS started_at,
           o.ended_at, o.error_code, left(o.error, 2000) AS error, o.deliverable_card_id,
           left({instruction_of(i)}, :text_limit::int) AS asked,
           i.payload -> 'ui_action' ->> 'tool_name' AS action_tool, i.context_headers ->> 'CG-Sender' AS requester,
           CASE WHEN o.agent_turn_id IS NULL THEN h.waiting_tool_count END AS waiting_tool_count,
           o.agent_turn_id IS NULL AND i.status = 'queued' AND EXISTS (
               SELECT FROM state.agent_state_head q WHERE q.agent_id = i.agent_id AND q.project_id = i.project_id
                 AND q.paused_at_epoch IS NOT NULL {by_key}) AS is_paused,
           i.payload ? 'rolled_back_by' AS rolled_back
    FROM state.agent_inbox i
    LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id
    LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
        AND h.active_agent_turn_id = i.agent_turn_id
    WHERE {of_conversation}
      AND (:before_id::text IS NULL OR i.conversation_seq < (
          SELECT b.conversation_seq FROM state.agent_inbox b
          WHERE b.agent_turn_id = :before_id AND b.project_id = :project_id AND b.message_type IN {turn_types} LIMIT 1))
    ORDER BY i.conversation_seq DESC LIMIT :row_limit::int) t
ORDER BY t.conversation_seq;

-- name: list_chat_cards :many
-- What was said and done in turns: of each the last cards of its steps (part 1), applied results (part 3) and what
-- people said to it while it ran (part 0), in order. The content of a large card is left out, and that of earlier ones
-- once a turn has too much.
SELECT t.agent_turn_id, x.step_id, x.part, x.place, x.steer_status, x.card_id, x.tool_calls, x.tool_call_id, x.metadata,
       CASE WHEN x.size <= :content_limit::int AND sum(x.size) OVER (
           PARTITION BY t.agent_turn_id
           ORDER BY state.as_count(substring(x.step_id FROM '[0-9]+$')) DESC NULLS FIRST, x.part DESC,
                    x.place DESC) <= :turn_limit::int
       THEN x.content END AS content, x.size
FROM unnest(:turns::text[]) t (agent_turn_id)
CROSS JOIN LATERAL (
    SELECT y.step_id, y.part, y.place, y.steer_status, c.card_id, c.content, octet_length(c.content::text) AS size,
           c.tool_calls, c.tool_call_id, c.metadata
    FROM (
        SELECT s.step_id, 1 AS part, n.place, n.card_id, null AS steer_status
        FROM state.agent_steps s CROSS JOIN LATERAL jsonb_array_elements_text(
            CASE jsonb_typeof(s.metadata -> 'new_card_ids')
                 WHEN 'array' THEN s.metadata -> 'new_card_ids' ELSE '[]' END)
            WITH ORDINALITY n (card_id, place)
        WHERE s.agent_turn_id = t.agent_turn_id AND s.project_id = :project_id
        UNION ALL
        SELECT w.step_id, 3, row_number() OVER (PARTITION BY w.step_id ORDER BY w.applied_at, w.tool_call_id),
               w.tool_result_card_id, null
        FROM state.turn_waiting_tools w
        WHERE w.agent_turn_id = t.agent_turn_id AND w.project_id = :project_id AND w.applied_at IS NOT NULL
        UNION ALL
        SELECT s.step_id, 0, s.seq, s.steer_id, s.status
        FROM state.steers s WHERE s.agent_turn_id = t.agent_turn_id AND s.project_id = :project_id) y
    CROSS JOIN LATERAL (
        SELECT k.card_id, k.content, k.tool_calls, k.tool_call_id, k.metadata FROM public.cards k
        WHERE k.card_id = y.card_id AND k.tenant_id = :project_id AND state.is_alive(k.expires_at, k.deleted_at)
          AND k.metadata ->> 'type' IN ('agent.thought', 'tool.result', 'task.deliverable', 'task.steer')
          AND (y.part = 0) = (k.metadata ->> 'type' = 'task.steer') LIMIT 1) c
    ORDER BY state.as_count(substring(y.step_id FROM '[0-9]+$')) DESC NULLS FIRST, y.part DESC,
             y.place DESC LIMIT :row_limit::int) x
ORDER BY t.agent_turn_id, state.as_count(substring(x.step_id FROM '[0-9]+$')) NULLS LAST, x.part, x.place;
