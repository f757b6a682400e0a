-- The audit's rules on strategies of an enqueue. A turn's edge has the moment of its enqueue; its row may have taken an
-- earlier place.

-- name: what_made_way_is_asked_to_stop :many
-- Protocol §6 enqueue: no turn is in hand or queued before a newer one that interrupts or rolls back, of the same
-- requester in the same conversation, unless it was asked to stop, or another turn asked for it. Live rows and heads
-- are looked up by their agent.
SELECT jsonb_build_object('project_id', l.project_id, 'agent_id', l.agent_id, 'agent_turn_id', l.agent_turn_id,
                          'other_agent_turn_id', n.agent_turn_id) AS ids,
       format('a newer turn of its requester has the strategy %s, and nobody asked this one to stop',
              n.payload #>> '{multitask,strategy}') AS detail
FROM state.agent_inbox n
CROSS JOIN LATERAL (SELECT e.created_at FROM state.execution_edges e
                    WHERE e.edge_id = 'enqueue-' || n.agent_turn_id {by_key}) newer
CROSS JOIN LATERAL (  -- what the agent has in hand, and what waits for it
    SELECT w.inbox_id FROM state.agent_inbox w
    WHERE w.agent_id = n.agent_id AND w.project_id = n.project_id AND w.archived_at IS NULL
    UNION
    SELECT h.active_inbox_id FROM state.agent_state_head h WHERE h.agent_id = n.agent_id AND h.project_id = n.project_id
    {by_key}) live
CROSS JOIN LATERAL (SELECT x.* FROM state.agent_inbox x WHERE x.inbox_id = live.inbox_id {by_key}) l
CROSS JOIN LATERAL (SELECT e.created_at FROM state.execution_edges e
                    WHERE e.edge_id = 'enqueue-' || l.agent_turn_id {by_key}) older
WHERE n.message_type = 'turn' AND n.payload ? 'multitask'
  AND l.channel_id = n.channel_id AND l.payload ->> 'conversation_id' = n.payload ->> 'conversation_id'
  AND l.context_headers ->> 'CG-Sender' = n.context_headers ->> 'CG-Sender'
  AND l.message_type = 'turn' AND NOT l.context_headers ? 'CG-Parent-Turn-Id'
  AND (older.created_at, l.created_at) < (newer.created_at, n.created_at)
  AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = l.agent_turn_id {by_key})
  AND NOT EXISTS (SELECT FROM state.agent_inbox s
                  WHERE s.agent_turn_id = l.agent_turn_id AND s.project_id = l.project_id
                    AND s.message_type = 'stop' AND s.archived_at IS NULL {by_key})
  AND (:since::timestamptz IS NULL OR n.created_at >= :since)
  AND (:project_id::text IS NULL OR n.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: what_made_way_is_recorded :many
-- Protocol §6 enqueue: a turn that was rolled back is one that its successor says it has stopped, and the other way
-- round.
SELECT jsonb_build_object('project_id', r.project_id, 'agent_turn_id', r.agent_turn_id,
                          'other_agent_turn_id', n.agent_turn_id) AS ids,
       'the turn is rolled back, and the one that took its place did not stop it' AS detail
FROM state.agent_inbox r
JOIN state.agent_inbox n ON n.agent_turn_id = r.payload ->> 'rolled_back_by'
    AND n.project_id = r.project_id AND n.message_type = 'turn'
WHERE r.message_type = 'turn' AND r.payload ? 'rolled_back_by'
  AND (n.payload #>> '{multitask,strategy}' IS DISTINCT FROM 'rollback'
       OR NOT coalesce(n.payload #> '{multitask,stopped}' ? r.agent_turn_id, false))
  AND (:since::timestamptz IS NULL OR r.created_at >= :since)
  AND (:project_id::text IS NULL OR r.project_id COLLATE "C" = :project_id)
UNION ALL
SELECT jsonb_build_object('project_id', n.project_id, 'agent_turn_id', r.agent_turn_id,
                          'other_agent_turn_id', n.agent_turn_id),
       'the turn that took its place has rolled it back, and its row does not say so'
FROM state.agent_inbox n CROSS JOIN LATERAL jsonb_array_elements_text(
    CASE jsonb_typeof(n.payload #> '{multitask,stopped}') WHEN 'array' THEN n.payload #> '{multitask,stopped}'
         ELSE '[]' END) x (agent_turn_id)
JOIN state.agent_inbox r ON r.agent_turn_id = x.agent_turn_id AND r.project_id = n.project_id
    AND r.message_type = 'turn'
WHERE n.message_type = 'turn' AND n.payload #>> '{multitask,strategy}' = 'rollback' AND NOT r.payload ? 'rolled_back_by'
  AND (:since::timestamptz IS NULL OR n.created_at >= :since)
  AND (:project_id::text IS NULL OR n.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: what_was_rolled_back_is_forgotten :many
-- Protocol §6 enqueue: of a turn that was rolled back the outcome says so, and its conversation goes on in a box that
-- is not its own and has none of its cards. The box that a rollback made had every other card that was in the box with
-- which the turn began.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'agent_turn_id', i.agent_turn_id,
                          'box_id', x.box_id) AS ids,
       x.detail
FROM state.agent_inbox i
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id
LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
    AND h.active_agent_turn_id = i.agent_turn_id
LEFT JOIN state.conversations c ON c.agent_id = i.agent_id AND c.conversation_id = i.payload ->> 'conversation_id'
    AND c.channel_id = i.channel_id AND c.project_id = i.project_id
CROSS JOIN LATERAL (
    SELECT NULL::uuid AS box_id, 'its outcome does not say that it was rolled back' AS detail
    WHERE o.stats ->> 'rolled_back_by' IS DISTINCT FROM i.payload ->> 'rolled_back_by' AND o.agent_turn_id IS NOT NULL
    UNION ALL
    SELECT c.output_box_id, 'its conversation goes on in its box'
    WHERE c.output_box_id = coalesce(o.output_box_id, h.output_box_id)
    UNION ALL
    (SELECT c.output_box_id, 'its conversation goes on in a box that has cards of it'
     FROM public.box_cards b JOIN public.cards k ON k.card_id = b.card_id
     WHERE b.box_id = c.output_box_id AND k.metadata ->> 'agent_turn_id' = i.agent_turn_id LIMIT 1)
    UNION ALL
    (SELECT m.box_id, 'the box that was made without it lacks a card of another turn'
     FROM state.agent_inbox n JOIN public.boxes m ON m.box_id = state.as_uuid(n.payload #>> '{multitask,output_box_id}')
     CROSS JOIN LATERAL (
         SELECT b.card_id FROM public.box_cards b
         WHERE b.box_id = state.as_uuid(i.payload ->> 'output_box_id') {by_key}) b
     JOIN public.cards k ON k.card_id = b.card_id
     WHERE n.agent_turn_id = i.payload ->> 'rolled_back_by' AND n.project_id = i.project_id AND n.message_type = 'turn'
       AND k.created_at <= m.created_at AND k.metadata ->> 'agent_turn_id' IS DISTINCT FROM i.agent_turn_id
       AND NOT EXISTS (SELECT FROM public.box_cards x WHERE x.box_id = m.box_id AND x.card_id = b.card_id) LIMIT 1)) x
WHERE i.message_type = 'turn' AND i.payload ? 'rolled_back_by'
  AND (:since::timestamptz IS NULL OR i.created_at >= :since)
  AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;
