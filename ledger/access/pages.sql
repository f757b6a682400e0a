-- What a gateway reads besides what operators read: pages of turns and conversations, and the cards of a turn as they
-- come (protocol §14).

-- name: page_turns :many
-- variant: page_turns_of_agent, without any_agent
-- variant: page_turns_of_channel, without any_channel
-- variant: page_turns_of_agent_in_channel, without any_agent, any_channel
-- variant: page_turns_of_conversation, without any_conversation
-- variant: page_turns_of_end_user, without any_end_user
-- Turns of a project, of one channel, agent, conversation or end user if that is given, the newest first, after a place
-- in that order.
SELECT i.agent_turn_id, i.agent_id, i.channel_id, i.created_at, i.correlation_id,
       i.payload ->> 'conversation_id' AS conversation_id, i.payload ->> 'end_user' AS end_user,
       {turn_status} AS status, coalesce(o.started_at, h.started_at) AS started_at, o.ended_at, o.error_code
FROM state.agent_inbox i
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id
LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
    AND h.active_agent_turn_id = i.agent_turn_id
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
-- only for any_conversation
  AND (:conversation_id::text IS NULL OR i.payload ->> 'conversation_id' = :conversation_id)
-- else
  AND (i.payload ->> 'conversation_id') COLLATE "C" = :conversation_id AND i.agent_turn_id >= ''
-- end
-- only for any_end_user
  AND (:end_user::text IS NULL OR i.payload ->> 'end_user' = :end_user)
-- else
  AND (i.payload ->> 'end_user') COLLATE "C" = :end_user AND i.agent_turn_id >= ''
-- end
  AND i.created_at <= coalesce(:before_at::timestamptz, 'infinity')  -- where the index is entered
  AND (:before_at::timestamptz IS NULL OR i.created_at < :before_at
       OR (i.created_at = :before_at AND i.agent_turn_id < :before_id))
ORDER BY i.created_at DESC, i.agent_turn_id DESC LIMIT :row_limit::int;

-- name: page_conversations :many
-- variant: page_conversations_of_agent, without any_agent
-- variant: page_conversations_of_channel, without any_channel
-- Conversations of a project, of one channel or agent if that is given, the last begun first, after a place in that
-- order: when one was last used changes while pages are read, and an index of it would make each enqueue in a
-- conversation write all of the table's.
SELECT c.conversation_id, c.agent_id, c.channel_id, c.output_box_id::text AS output_box_id,
       c.turn_count, c.last_turn_id, c.created_at, c.updated_at
FROM state.conversations c
WHERE c.project_id COLLATE "C" = :project_id AND c.agent_id <> ''
-- only for any_channel
  AND (:channel_id::text IS NULL OR c.channel_id = :channel_id)
-- else
  AND c.channel_id COLLATE "C" = :channel_id AND c.conversation_id >= ''
-- end
-- only for any_agent
  AND (:agent_id::text IS NULL OR c.agent_id = :agent_id)
-- else
  AND c.agent_id COLLATE "C" = :agent_id AND c.conversation_id >= ''
-- end
  AND c.created_at <= coalesce(:before_at::timestamptz, 'infinity')
  AND (:before_at::timestamptz IS NULL OR c.created_at < :before_at
       OR (c.created_at = :before_at AND c.output_box_id < :before_id::text::uuid))
ORDER BY c.created_at DESC, c.output_box_id DESC LIMIT :row_limit::int;

-- name: list_last_turns :many
-- The last turns of a conversation, in its order.
SELECT t.* FROM (
    SELECT i.agent_turn_id, i.conversation_seq FROM state.agent_inbox i
    WHERE i.agent_id = :agent_id AND i.payload ->> 'conversation_id' = :conversation_id AND i.channel_id = :channel_id
      AND i.project_id = :project_id AND i.message_type IN {turn_types}
    ORDER BY i.conversation_seq DESC LIMIT :row_limit::int) t
ORDER BY t.conversation_seq;

-- name: list_turns_after :many
-- The turns of a conversation after a place in its order. Who has seen this place has missed none before it: they
-- commit in this order.
SELECT i.agent_turn_id, i.conversation_seq FROM state.agent_inbox i
WHERE i.agent_id = :agent_id AND i.payload ->> 'conversation_id' = :conversation_id AND i.channel_id = :channel_id
  AND i.project_id = :project_id AND i.message_type IN {turn_types} AND i.conversation_seq > :after_seq::bigint
ORDER BY i.conversation_seq LIMIT :row_limit::int;

-- name: find_turn_place :opt
-- The place of a turn in the order of a conversation; none, if it is not one of it.
SELECT i.agent_turn_id, i.conversation_seq FROM state.agent_inbox i
WHERE i.agent_turn_id = :agent_turn_id AND i.agent_id = :agent_id AND i.payload ->> 'conversation_id' = :conversation_id
  AND i.channel_id = :channel_id AND i.project_id = :project_id AND i.message_type IN {turn_types};

-- name: is_box_of_channel :one
-- Whether a turn of this channel reads or writes a box, and no other channel has anything in it.
SELECT NOT state.is_abroad(:project_id, :channel_id, state.as_uuid(:box_id)) AND (EXISTS (
    SELECT FROM state.agent_inbox i WHERE lower(i.payload ->> 'output_box_id') = lower(:box_id::text)
      AND i.message_type IN {turn_types}
      AND i.project_id = :project_id AND i.channel_id = :channel_id)
  OR EXISTS (
    SELECT FROM state.agent_inbox i WHERE lower(i.payload ->> 'context_box_id') = lower(:box_id::text)
      AND i.message_type IN {turn_types}
      AND i.project_id = :project_id AND i.channel_id = :channel_id)
  OR EXISTS (  -- which a compaction or a rollback made
    SELECT FROM state.conversations c WHERE c.output_box_id = state.as_uuid(:box_id)
      AND c.project_id = :project_id AND c.channel_id = :channel_id)
  OR EXISTS (
    SELECT FROM state.agent_steps s WHERE s.metadata #>> '{compaction,output_box_id}' = lower(:box_id::text)
      AND s.metadata ? 'compaction'
      AND s.project_id = :project_id AND s.channel_id = :channel_id)) AS found;

-- name: list_turn_progress :many
-- The cards that a turn's steps made, and what came of their calls, with the step of each; without those that are
-- known. Of a call that was edited, the card of what ran comes before its result (sub 1 of the place before). What a
-- stop makes comes last: the canceled results of calls, and the deliverable that no step made, as of the step that was
-- to come. A step without cards is one row without a card.
SELECT x.step_id, x.step_status, x.finish_reason, x.part, x.place, x.sub, c.card_id, c.content,
       c.tool_calls, c.tool_call_id, c.metadata
FROM (
    SELECT s.step_id, s.status AS step_status, s.metadata ->> 'finish_reason' AS finish_reason, 1 AS part,
           coalesce(n.place, 0) AS place, 0 AS sub, n.card_id
    FROM state.agent_steps s
    LEFT JOIN LATERAL jsonb_array_elements_text(coalesce(s.metadata -> 'new_card_ids',
                                                         '[]')) WITH ORDINALITY n (card_id, place) ON true
    WHERE s.agent_turn_id = :agent_turn_id AND s.project_id = :project_id AND NOT s.step_id = ANY (:known_steps::text[])
    UNION ALL
    SELECT r.step_id, null, null, 3, r.place - v.sub, v.sub, v.card_id
    FROM (SELECT w.step_id, w.call_card_id,
                 row_number() OVER (PARTITION BY w.step_id
                                    ORDER BY w.wait_status = 'dropped', w.applied_at, w.tool_call_id) AS place,
                 CASE w.wait_status WHEN 'dropped' THEN w.tool_call_id || '-canceled'
                      ELSE w.tool_result_card_id END AS result_card_id
          FROM state.turn_waiting_tools w
          WHERE w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id
            AND (w.wait_status = 'dropped' OR (w.applied_at IS NOT NULL AND w.tool_result_card_id IS NOT NULL))) r
    CROSS JOIN LATERAL (VALUES (1, r.call_card_id), (0, r.result_card_id)) v (sub, card_id)
    WHERE v.card_id IS NOT NULL
    UNION ALL
    SELECT o.agent_turn_id || '-s' || (1 + coalesce((
               SELECT max(state.as_count(substring(s.step_id FROM '[0-9]+$'))) FROM state.agent_steps s
               WHERE s.agent_turn_id = :agent_turn_id AND s.project_id = :project_id), 0)), null, null,
           3, 1, 0, o.deliverable_card_id
    FROM state.turn_outcomes o
    WHERE o.agent_turn_id = :agent_turn_id AND o.project_id = :project_id AND NOT EXISTS (
        SELECT FROM state.agent_steps s WHERE s.agent_turn_id = :agent_turn_id AND s.project_id = :project_id
          AND s.metadata -> 'new_card_ids' ? o.deliverable_card_id)) x
LEFT JOIN LATERAL (  -- card by card: a plan made for few cards would read all of them once there are many
    SELECT k.card_id, k.content, k.tool_calls, k.tool_call_id, k.metadata FROM public.cards k
    WHERE k.card_id = x.card_id AND k.tenant_id = :project_id AND NOT x.card_id = ANY (:known_cards::text[])
      AND state.is_alive(k.expires_at, k.deleted_at) LIMIT 1) c ON true
ORDER BY x.step_id, x.part, x.place, x.sub;
