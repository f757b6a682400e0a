-- The audit's rules on strategies of an enqueue. A turn's edge has the moment of its enqueue; its row may have taken an earlier place.

-- name: what_made_way_is_asked_to_stop :many
-- Protocol §6 enqueue: no turn is in hand or queued before a newer one that interrupts or rolls back, of the same requester in the
-- same conversation, unless it was asked to stop, or another turn asked for it. Live rows and heads are looked up by their agent.
SELECT jsonb_build_object('project_id', l.project_id, 'agent_id', l.agent_id, 'agent_turn_id', l.agent_turn_id, 'other_agent_turn_id', n.agent_turn_id) AS ids,
       format('a newer turn of its requester has the strategy %s, and nobody asked this one to stop', n.payload #>> '{multitask,strategy}') AS detail
FROM state.agent_inbox n
CROSS JOIN LATERAL (SELECT e.created_at FROM state.execution_edges e WHERE e.edge_id = 'enqueue-' || n.agent_turn_id OFFSET 0) newer
CROSS JOIN LATERAL (  -- what the agent has in hand, and what waits for it
    SELECT w.inbox_id FROM state.agent_inbox w WHERE w.agent_id = n.agent_id AND w.project_id = n.project_id AND w.archived_at IS NULL
    UNION
    SELECT h.active_inbox_id FROM state.agent_state_head h WHERE h.agent_id = n.agent_id AND h.project_id = n.project_id
    OFFSET 0) live
CROSS JOIN LATERAL (SELECT x.* FROM state.agent_inbox x WHERE x.inbox_id = live.inbox_id OFFSET 0) l
CROSS JOIN LATERAL (SELECT e.created_at FROM state.execution_edges e WHERE e.edge_id = 'enqueue-' || l.agent_turn_id OFFSET 0) older
WHERE n.message_type = 'turn' AND n.payload ? 'multitask'
  AND l.channel_id = n.channel_id AND l.payload ->> 'conversation_id' = n.payload ->> 'conversation_id'
  AND l.context_headers ->> 'CG-Sender' = n.context_headers ->> 'CG-Sender' AND l.message_type = 'turn' AND NOT l.context_headers ? 'CG-Parent-Turn-Id'
  AND (older.created_at, l.created_at) < (newer.created_at, n.created_at)
  AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = l.agent_turn_id OFFSET 0)
  AND NOT EXISTS (SELECT FROM state.agent_inbox s WHERE s.agent_turn_id = l.agent_turn_id AND s.project_id = l.project_id
                    AND s.message_type = 'stop' AND s.archived_at IS NULL OFFSET 0)
  AND (:since::timestamptz IS NULL OR n.created_at >= :since)
  AND (:project_id::text IS NULL OR n.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: what_made_way_is_recorded :many
-- Protocol §6 enqueue: a turn that was rolled back is one that its successor says it has stopped. Of a window: one enqueued in it, or in hand.
SELECT jsonb_build_object('project_id', r.project_id, 'agent_turn_id', r.agent_turn_id, 'other_agent_turn_id', r.by_turn_id, 'box_id', r.box_id) AS ids,
       'the turn is rolled back, and the one that took its place did not stop it' AS detail
FROM {of_turns_since(state.rollbacks, agent_turn_id)} r LEFT JOIN state.agent_inbox n ON n.agent_turn_id = r.by_turn_id AND n.message_type = 'turn'
WHERE n.inbox_id IS NOT NULL AND (n.payload #>> '{multitask,strategy}' IS DISTINCT FROM 'rollback'
    OR NOT coalesce(n.payload #> '{multitask,stopped}' ? r.agent_turn_id, false))
  AND (:project_id::text IS NULL OR r.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: what_was_rolled_back_is_forgotten :many
-- Protocol §6 enqueue: of a turn that was rolled back and is over the outcome says so; its box is read anew since then, and not from a
-- cut that the turn made.
SELECT jsonb_build_object('project_id', r.project_id, 'agent_id', o.agent_id, 'agent_turn_id', r.agent_turn_id, 'box_id', r.box_id) AS ids,
       CASE WHEN NOT o.stats ? 'rolled_back_by' THEN 'its outcome does not say that it was rolled back'
            WHEN c.card_id IS NOT NULL THEN 'its box is read from a cut that the turn made'
            ELSE 'its box has not changed its version since the turn ended' END AS detail
FROM state.rollbacks r JOIN state.turn_outcomes o ON o.agent_turn_id = r.agent_turn_id
JOIN state.agent_inbox i ON i.agent_turn_id = r.agent_turn_id AND i.message_type = 'turn' AND state.as_uuid(i.payload ->> 'output_box_id') = r.box_id
JOIN public.boxes b ON b.box_id = r.box_id
LEFT JOIN state.memory_cuts m ON m.box_id = r.box_id AND m.position > 1
LEFT JOIN public.cards c ON c.card_id = m.cut_card_id AND c.metadata ->> 'agent_turn_id' = r.agent_turn_id
WHERE (NOT o.stats ? 'rolled_back_by' OR c.card_id IS NOT NULL OR b.updated_at < o.ended_at)
  AND (:since::timestamptz IS NULL OR o.ended_at >= :since)
  AND (:project_id::text IS NULL OR r.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;
