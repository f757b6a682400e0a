-- The calls that turns wait for, as people look at them (protocol §6, report).

-- name: list_calls_out :many
-- The calls of a project, of one channel, agent or tool if that is given, that wait for an answer, the oldest first,
-- after a place in that order. It reads the turns in hand. A call of which a person or a batch of children keeps the
-- answer says which; so does one whose tool asks a person.
WITH calls AS MATERIALIZED (
    SELECT w.tool_call_id, w.tool_name, w.agent_id, w.agent_turn_id, w.step_id, w.project_id,
           coalesce(h.active_channel_id, 'public') AS channel_id,
           w.wait_status, w.created_at, w.received_at, w.begun_at, w.begun_by, w.doubted_at, w.held_by,
           w.left_seconds,
           coalesce(w.deadline, CASE WHEN w.held_by IS NULL THEN h.resume_deadline END) AS deadline
    FROM state.agent_state_head h
    JOIN state.turn_waiting_tools w ON w.agent_turn_id = h.active_agent_turn_id AND w.project_id = h.project_id
    WHERE h.project_id COLLATE "C" = :project_id AND h.output_box_id IS NOT NULL AND h.agent_id >= ''
      AND w.wait_status IN ('waiting', 'received')
      AND (:channel_id::text IS NULL OR coalesce(h.active_channel_id, 'public') = :channel_id)
      AND (:agent_id::text IS NULL OR h.agent_id = :agent_id) AND (:tool_name::text IS NULL OR w.tool_name = :tool_name)
),
shown AS MATERIALIZED (
    SELECT c.*, count(*) OVER () AS found FROM calls c
    WHERE :waits_for::text IS NULL
       OR :waits_for = CASE WHEN c.held_by IS NOT NULL OR c.left_seconds IS NOT NULL THEN 'held'
                            WHEN c.deadline < now() THEN 'overdue' ELSE 'tool' END
),
page AS MATERIALIZED (
    SELECT s.* FROM shown s
    WHERE :after_at::timestamptz IS NULL OR (s.created_at, s.tool_call_id) > (:after_at, :after_id::text)
    ORDER BY s.created_at, s.tool_call_id LIMIT :row_limit::int
)
SELECT p.tool_call_id, p.tool_name, p.agent_id, p.agent_turn_id, p.step_id, p.channel_id,
       p.wait_status, p.created_at, p.received_at,
       p.begun_at, p.begun_by, p.doubted_at, p.deadline, coalesce(p.deadline < now(), false) AS overdue,
       {question_of_call(p)} AS interrupt_id,
       p.left_seconds IS NOT NULL AS asks_people, b.batch_id, t.target_subject, p.found
FROM page p
LEFT JOIN LATERAL (SELECT x.batch_id FROM state.pmo_batches x WHERE x.batch_id = p.held_by) b ON true
LEFT JOIN LATERAL (
    SELECT x.target_subject FROM resource.tools x
    WHERE x.tool_name = p.tool_name AND x.project_id = p.project_id LIMIT 1) t ON true
ORDER BY p.created_at, p.tool_call_id;

-- name: get_call_out :opt
-- A call of a project, of one channel if that is given, whether it waits or not, with the contents of its card and of
-- its result, and who sent the first report.
SELECT w.tool_call_id, w.tool_name, w.agent_id, w.agent_turn_id, w.step_id, i.channel_id,
       w.wait_status, w.created_at, w.received_at, w.applied_at, w.begun_at, w.begun_by, w.doubted_at,
       coalesce(w.deadline, CASE WHEN w.held_by IS NULL THEN h.resume_deadline END) AS deadline,
       coalesce(coalesce(w.deadline, CASE WHEN w.held_by IS NULL THEN h.resume_deadline END) < now(), false) AS overdue,
       coalesce(q.interrupt_id, {question_of_call(w)}) AS interrupt_id, w.left_seconds IS NOT NULL AS asks_people,
       q.reason AS held_because, b.batch_id, t.target_subject, c.content AS call, c.added, r.content AS result,
       m.status AS report_status, m.last_error AS report_error, m.context_headers ->> 'CG-Sender' AS reported_by
FROM state.turn_waiting_tools w
JOIN LATERAL (
    SELECT x.channel_id FROM state.agent_inbox x
    WHERE x.agent_turn_id = w.agent_turn_id AND x.project_id = w.project_id
      AND x.message_type IN {turn_types} LIMIT 1) i ON true
LEFT JOIN state.agent_state_head h ON h.agent_id = w.agent_id AND h.project_id = w.project_id
    AND h.active_agent_turn_id = w.agent_turn_id
LEFT JOIN LATERAL (SELECT x.interrupt_id, x.reason FROM state.interrupts x WHERE x.interrupt_id = w.held_by) q ON true
LEFT JOIN LATERAL (SELECT x.batch_id FROM state.pmo_batches x WHERE x.batch_id = w.held_by) b ON true
LEFT JOIN LATERAL (
    SELECT x.target_subject FROM resource.tools x
    WHERE x.tool_name = w.tool_name AND x.project_id = w.project_id LIMIT 1) t ON true
LEFT JOIN LATERAL (
    SELECT x.status, x.last_error, x.payload, x.context_headers FROM state.agent_inbox x
    WHERE x.correlation_id = w.tool_call_id AND x.project_id = w.project_id
      AND x.message_type = 'tool_result' LIMIT 1) m ON true
LEFT JOIN LATERAL (
    SELECT k.content, k.metadata -> 'added' AS added
    FROM public.cards k WHERE k.card_id = coalesce(w.call_card_id, w.tool_call_id || '-call')
      AND k.tenant_id = w.project_id
      AND state.is_alive(k.expires_at, k.deleted_at) LIMIT 1) c ON true
LEFT JOIN LATERAL (
    SELECT k.content FROM public.cards k
    WHERE k.card_id = coalesce(w.tool_result_card_id, m.payload ->> 'tool_result_card_id')
      AND k.tenant_id = w.project_id
      AND state.is_alive(k.expires_at, k.deleted_at) LIMIT 1) r ON true
WHERE w.tool_call_id = :tool_call_id AND w.project_id = :project_id
  AND (:channel_id::text IS NULL OR i.channel_id = :channel_id);
