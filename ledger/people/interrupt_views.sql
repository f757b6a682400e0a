-- Questions to people, as people look at them (protocol §13).

-- name: list_interrupts :many
-- Questions of a project, of one channel, agent, turn or status if that is given, the newest first, those older than a given one.
SELECT t.interrupt_id, t.channel_id, t.agent_id, t.agent_turn_id, t.step_id, t.tool_call_id, t.tool_name,
       coalesce(w.call_card_id, t.tool_call_id || '-call') AS tool_call_card_id, t.reason, t.message, t.action_digest,
       t.allowed_decisions, t.response_schema, t.requester_may_decide, t.requester, t.status, t.created_at, t.expires_at, t.decision,
       t.decided_by, t.decided_at, t.comment
FROM state.interrupts t
LEFT JOIN LATERAL (
    SELECT x.call_card_id FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = t.tool_call_id AND x.project_id = t.project_id LIMIT 1) w ON true
WHERE t.project_id COLLATE "C" = :project_id AND (:channel_id::text IS NULL OR t.channel_id = :channel_id)
  AND (:agent_id::text IS NULL OR t.agent_id = :agent_id) AND (:agent_turn_id::text IS NULL OR t.agent_turn_id = :agent_turn_id)
  AND (:status::text IS NULL OR t.status = :status)
  AND (:after_id::text IS NULL OR (t.created_at, t.interrupt_id) < (
      SELECT b.created_at, b.interrupt_id FROM state.interrupts b WHERE b.interrupt_id = :after_id AND b.project_id = :project_id))
ORDER BY t.created_at DESC, t.interrupt_id DESC LIMIT :row_limit::int;

-- name: get_interrupt :opt
-- A question of a project, of one channel if that is given, with the content of its call's card.
SELECT t.interrupt_id, t.channel_id, t.agent_id, t.agent_turn_id, t.step_id, t.tool_call_id, t.tool_name,
       coalesce(w.call_card_id, t.tool_call_id || '-call') AS tool_call_card_id, t.reason, t.message, t.action_digest,
       t.allowed_decisions, t.response_schema, t.requester_may_decide, t.requester, t.status, t.created_at, t.expires_at, t.decision,
       t.decided_by, t.decided_at, t.comment, c.content
FROM state.interrupts t
LEFT JOIN LATERAL (
    SELECT x.call_card_id FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = t.tool_call_id AND x.project_id = t.project_id LIMIT 1) w ON true
LEFT JOIN LATERAL (
    SELECT k.content FROM public.cards k
    WHERE k.card_id = coalesce(w.call_card_id, t.tool_call_id || '-call') AND k.tenant_id = t.project_id
      AND state.is_alive(k.expires_at, k.deleted_at)) c ON true
WHERE t.interrupt_id = :interrupt_id AND t.project_id = :project_id AND (:channel_id::text IS NULL OR t.channel_id = :channel_id);
