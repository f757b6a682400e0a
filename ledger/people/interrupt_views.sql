-- A question to a person, as people look at it (protocol §13).

-- name: show_interrupt :opt
-- A question, of one channel if that is given, with the content of its call's card.
SELECT {interrupt_columns}, c.content FROM state.interrupts q
JOIN state.turn_waiting_tools w ON w.tool_call_id = q.tool_call_id AND w.project_id = q.project_id
LEFT JOIN LATERAL (
    SELECT k.content FROM public.cards k
    WHERE k.card_id = coalesce(w.call_card_id, w.tool_call_id || '-call') AND k.tenant_id = q.project_id
      AND state.is_alive(k.expires_at, k.deleted_at)) c ON true
WHERE q.interrupt_id = :interrupt_id AND q.project_id = :project_id AND (:channel_id::text IS NULL OR q.channel_id = :channel_id);
