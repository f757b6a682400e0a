-- The audit's rules on questions to people. Whatever changes one holds its agent's head.

-- name: held_calls_are_asked_about :many
-- Protocol §13: a call that an interrupt holds waits, and the interrupt is open and about that call.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id, 'tool_call_id', w.tool_call_id,
                          'interrupt_id', w.held_by) AS ids,
       format('the call is %s, and its interrupt %s', w.wait_status,
              coalesce(q.status || ' about ' || q.tool_call_id, 'is not there')) AS detail
FROM state.turn_waiting_tools w
LEFT JOIN state.interrupts q ON q.interrupt_id = w.held_by AND q.project_id = w.project_id
WHERE starts_with(w.held_by, 'int-') AND w.wait_status <> 'dropped'
  AND (w.wait_status, q.status, q.tool_call_id) IS DISTINCT FROM ('waiting', 'open', w.tool_call_id)
  AND (:since_id::text IS NULL OR w.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR w.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: open_interrupts_hold_their_call :many
-- Protocol §13: an open interrupt that no tool asks holds its call, which has no deadline, and its turn is suspended.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_turn_id', q.agent_turn_id, 'tool_call_id', q.tool_call_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       format('its call is %s and held by %s, and its turn %s', coalesce(w.wait_status, 'not there'),
              coalesce(w.held_by, 'nobody'),
              coalesce(h.status, 'in nobody''s hand'))
           || CASE WHEN w.deadline IS NOT NULL THEN '; the call has a deadline' ELSE '' END AS detail
FROM state.interrupts q
LEFT JOIN state.turn_waiting_tools w ON w.tool_call_id = q.tool_call_id AND w.project_id = q.project_id
LEFT JOIN state.agent_state_head h ON h.agent_id = q.agent_id AND h.project_id = q.project_id
    AND h.active_agent_turn_id = q.agent_turn_id
WHERE q.status = 'open' AND q.call_key IS NULL
  AND ((w.wait_status, w.held_by, h.status) IS DISTINCT FROM ('waiting', q.interrupt_id, 'suspended')
       OR w.deadline IS NOT NULL)
  AND (:since_id::text IS NULL OR q.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: decisions_have_their_effect :many
-- Protocol §13: a call that was approved or edited is not answered by its decision; any other decision, a changed tool
-- and an expiry answer it. What becomes of a tool's question answers no call.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_turn_id', q.agent_turn_id, 'tool_call_id', q.tool_call_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       format('it is %s%s, and its call %s', q.status, coalesce(' by ' || q.decision, ''),
              CASE WHEN i.inbox_id IS NULL THEN 'was not answered by it' ELSE 'was answered by it' END) AS detail
FROM state.interrupts q LEFT JOIN state.agent_inbox i ON i.inbox_id = 'decide-' || q.interrupt_id
WHERE (i.inbox_id IS NOT NULL) <> (q.call_key IS NULL AND (
       q.status = 'expired' OR q.status = 'resolved' AND (q.tool_changed OR q.decision IN ('reject', 'respond'))))
  AND (:since_id::text IS NULL OR q.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: edits_count :many
-- Protocol §13: of a call that was edited the second card counts, and is in the output box of its turn.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_turn_id', q.agent_turn_id, 'tool_call_id', q.tool_call_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       format('its call counts by %s, which is %s', w.call_card_id,
              CASE WHEN b.card_id IS NULL THEN 'not in the output box' ELSE 'in the output box' END) AS detail
FROM state.interrupts q
JOIN state.turn_waiting_tools w ON w.tool_call_id = q.tool_call_id AND w.project_id = q.project_id
JOIN state.agent_steps s ON s.step_id = q.step_id AND s.project_id = q.project_id
LEFT JOIN public.box_cards b ON b.card_id = q.tool_call_id || '-call-2' AND b.box_id = s.output_box_id
WHERE q.decision = 'edit' AND NOT q.tool_changed
  AND (w.call_card_id IS DISTINCT FROM q.tool_call_id || '-call-2' OR b.card_id IS NULL)
  AND (:since_id::text IS NULL OR q.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: withdrawn_interrupts_are_over :many
-- Protocol §13: an interrupt is withdrawn by its turn's end; one that asks whether a call was done, or that a tool
-- asks, also as the call is reported.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_turn_id', q.agent_turn_id, 'tool_call_id', q.tool_call_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       'it is withdrawn, and its turn has no outcome' AS detail
FROM state.interrupts q LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = q.agent_turn_id
WHERE q.status = 'withdrawn' AND o.agent_turn_id IS NULL
  AND NOT ((q.reason = 'confirmation' OR q.call_key IS NOT NULL) AND EXISTS (
      SELECT FROM state.turn_waiting_tools w
      WHERE w.tool_call_id = q.tool_call_id AND w.project_id = q.project_id AND w.wait_status <> 'waiting'))
  AND (:since_id::text IS NULL OR q.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: interrupts_agree_with_their_call :many
-- Protocol §13: an interrupt is of its call's agent, turn, step, tool and channel.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_turn_id', q.agent_turn_id, 'tool_call_id', q.tool_call_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       'interrupt and call differ' AS detail
FROM state.interrupts q
LEFT JOIN state.turn_waiting_tools w ON w.tool_call_id = q.tool_call_id AND w.project_id = q.project_id
LEFT JOIN state.agent_steps s ON s.step_id = q.step_id AND s.project_id = q.project_id
WHERE (q.agent_id, q.agent_turn_id, q.step_id, q.tool_name, q.channel_id)
      IS DISTINCT FROM (w.agent_id, w.agent_turn_id, w.step_id, w.tool_name, coalesce(s.channel_id, 'public'))
  AND (:since_id::text IS NULL OR q.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: expired_interrupts_are_closed :many
-- Protocol §8 interrupts: an interrupt whose time is over is closed, at the latest by the safety net.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_turn_id', q.agent_turn_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       format('open, and its time was over %s s ago', round(extract(epoch FROM now() - q.expires_at))) AS detail
FROM state.interrupts q JOIN resource.project_agents a ON a.agent_id = q.agent_id AND a.project_id = q.project_id
WHERE q.status = 'open' AND q.expires_at < now() - make_interval(secs => :grace_seconds::float8)
  AND EXISTS (SELECT FROM state.workers w WHERE w.worker_target = a.worker_target
              AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: tool_questions_put_off_their_call :many
-- Protocol §13.8: the call of a tool's open question waits, held by nobody, has its time left, and a deadline that is
-- not before the question's; a call without such a question has none left over.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id, 'tool_call_id', w.tool_call_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       format('the call is %s, held by %s, has until %s and %s left; its question is %s', w.wait_status,
              coalesce(w.held_by, 'nobody'),
              coalesce(w.deadline::text, 'for ever'), coalesce(w.left_seconds || ' s', 'nothing'),
              coalesce('open until ' || q.expires_at, 'not there')) AS detail
FROM {of_turns_since(state.turn_waiting_tools, agent_turn_id)} w
LEFT JOIN state.interrupts q ON q.agent_turn_id = w.agent_turn_id
    AND q.tool_call_id = w.tool_call_id AND q.call_key IS NOT NULL AND q.status = 'open'
WHERE ((q.interrupt_id IS NULL) <> (w.left_seconds IS NULL)
   OR (q.interrupt_id IS NOT NULL AND (w.wait_status <> 'waiting' OR w.held_by IS NOT NULL
                                       OR w.deadline IS NULL OR w.deadline < q.expires_at)))
  AND (:project_id::text IS NULL OR w.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: tool_questions_keep_their_answer :many
-- Protocol §13.8: a tool's question keeps what a person responded, and no other does.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_turn_id', q.agent_turn_id, 'tool_call_id', q.tool_call_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       format('it is %s%s%s, and keeps %s', q.status, coalesce(' by ' || q.decision, ''),
              CASE WHEN q.call_key IS NULL THEN ', no tool''s' ELSE '' END,
              CASE WHEN q.response IS NULL THEN 'no answer' ELSE 'an answer' END) AS detail
FROM state.interrupts q
WHERE (q.response IS NOT NULL) <> (q.call_key IS NOT NULL AND q.decision IS NOT DISTINCT FROM 'respond')
  AND (:since_id::text IS NULL OR q.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: deciders_have_no_words :many
-- Protocol §13.3: who decided about a call had no words in what led to it, unless its requester may decide.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_turn_id', t.agent_turn_id, 'tool_call_id', t.tool_call_id,
                          'interrupt_id', t.interrupt_id) AS ids,
       format('%s decided, and has words in what led to the call', t.decided_by) AS detail
FROM state.interrupts t
WHERE t.status = 'resolved' AND NOT t.requester_may_decide AND (:since_id::text IS NULL OR t.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR t.project_id = :project_id) AND state.has_words(t, t.decided_by)
ORDER BY ids LIMIT :row_limit::int;

-- name: decisions_have_their_row :many
-- Protocol §4.4: a decision has a consumed inbox row and one edge report/response, under the interrupt's id; no other
-- interrupt has any.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_turn_id', q.agent_turn_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       format('the interrupt is %s, its decision row %s, and it has %s edges', q.status,
              coalesce(i.status, 'missing'), e.edges) AS detail
FROM {of_turns_since(state.interrupts, agent_turn_id)} q
LEFT JOIN state.agent_inbox i ON i.correlation_id = q.interrupt_id
    AND i.project_id = q.project_id AND i.message_type = 'decision'
CROSS JOIN LATERAL (
    SELECT count(*) AS edges FROM state.execution_edges x
    WHERE md5(x.correlation_id) = md5(q.interrupt_id) AND x.project_id = q.project_id
      AND x.primitive = 'report' AND x.edge_phase = 'response'
      AND x.target_agent_turn_id = q.agent_turn_id) e
WHERE (e.edges <> CASE q.status WHEN 'resolved' THEN 1 ELSE 0 END
       OR i.status IS DISTINCT FROM CASE q.status WHEN 'resolved' THEN 'consumed' END)
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: clients_answer_their_own_calls :many
-- Protocol §19: a call of a client's tool is its turn's requester's, who alone gives it a result, and none ends the
-- turn.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_turn_id', q.agent_turn_id, 'tool_call_id', q.tool_call_id,
                          'interrupt_id', q.interrupt_id) AS ids,
       format('it is for %s, asked for by %s, and %s%s', coalesce(q.requester, 'nobody'),
              coalesce(i.context_headers ->> 'CG-Sender', 'nobody'), q.status,
              coalesce(' by ' || q.decided_by, ''))
           || CASE WHEN o.agent_turn_id IS NOT NULL THEN '; its result ended the turn' ELSE '' END AS detail
FROM {of_turns_since(state.interrupts, agent_turn_id)} q
LEFT JOIN state.agent_inbox i ON i.agent_turn_id = q.agent_turn_id AND i.project_id = q.project_id
    AND i.message_type IN {turn_types}
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = q.agent_turn_id AND q.status = 'resolved'
    AND o.tool_result_card_id = q.tool_call_id || '-result'
WHERE (q.only_requester OR q.reason = 'client_tool')
  AND ((q.reason, q.only_requester, q.call_key IS NULL) IS DISTINCT FROM ('client_tool', true, true)
       OR q.allowed_decisions && ARRAY['approve', 'edit'] OR o.agent_turn_id IS NOT NULL
       OR q.requester IS DISTINCT FROM i.context_headers ->> 'CG-Sender'
       OR (q.decision = 'respond' AND q.decided_by IS DISTINCT FROM q.requester))
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;
