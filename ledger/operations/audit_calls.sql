-- The audit's rules on steps, calls and edges. Rules on calls start from the turns of the window, as the other rules
-- do. Steps named step_… are a UI worker's (protocol §10.12): its turns have no outcome, and their steps no order.

-- name: steps_in_order :many
-- Protocol §4.2: the steps of a turn are 1 to n.
SELECT jsonb_build_object('agent_turn_id', s.agent_turn_id) AS ids,
       format('%s steps, the last of them number %s', count(*), coalesce(max(s.number)::text, 'none')) AS detail
FROM (
    SELECT s.agent_turn_id, CASE WHEN starts_with(s.step_id, s.agent_turn_id || '-s')
                                      AND pg_input_is_valid(n.digits, 'integer')
                                 THEN n.digits::int END AS number
    FROM state.agent_steps s CROSS JOIN LATERAL (SELECT substr(s.step_id, length(s.agent_turn_id) + 3) AS digits) n
    WHERE NOT starts_with(s.step_id, 'step_')
      AND (:since_id::text IS NULL OR s.step_id >= :since_id)
      AND (:project_id::text IS NULL OR s.project_id = :project_id)
) s
GROUP BY s.agent_turn_id HAVING (count(s.number), max(s.number), min(s.number)) IS DISTINCT FROM (count(*), count(*), 1)
ORDER BY ids LIMIT :row_limit::int;

-- name: heads_count_their_steps :many
-- Protocol §4.2: a head counts the steps that its turn has committed.
SELECT jsonb_build_object('project_id', h.project_id, 'agent_id', h.agent_id,
                          'agent_turn_id', h.active_agent_turn_id) AS ids,
       format('the head counts %s steps, and there are %s', h.step_count, s.steps) AS detail
FROM state.agent_state_head h
CROSS JOIN LATERAL (
    SELECT count(*) AS steps FROM state.agent_steps s
    WHERE s.agent_turn_id = h.active_agent_turn_id AND NOT starts_with(s.step_id, 'step_')) s
WHERE h.status <> 'idle' AND h.step_count <> s.steps AND (:project_id::text IS NULL OR h.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: step_agrees_with_its_turn :many
-- Protocol §4.2: a step is of an enqueued turn, with its agent, channel, trace and boxes (the output box is the one
-- that it read), and was written when it was over.
SELECT jsonb_build_object('project_id', s.project_id, 'agent_turn_id', s.agent_turn_id, 'step_id', s.step_id) AS ids,
       CASE WHEN t.inbox_id IS NULL THEN 'no turn of this agent is enqueued under its id'
            ELSE 'step and turn differ in ' || concat_ws(', ',
           CASE WHEN s.status = 'running' OR s.ended_at IS NULL THEN 'being over' END,
           CASE WHEN s.channel_id IS DISTINCT FROM t.channel_id THEN 'channel' END,
           CASE WHEN s.trace_id IS DISTINCT FROM split_part(t.context_headers ->> 'traceparent',
                                                            '-', 2) THEN 'trace' END,
           CASE WHEN s.profile_box_id::text IS DISTINCT FROM t.payload ->> 'profile_box_id' THEN 'profile box' END,
           CASE WHEN s.context_box_id::text IS DISTINCT FROM t.payload ->> 'context_box_id' THEN 'context box' END,
           CASE WHEN s.output_box_id::text IS DISTINCT FROM b.output_box_id THEN 'output box' END) END AS detail
FROM state.agent_steps s
LEFT JOIN state.agent_inbox t ON t.agent_turn_id = s.agent_turn_id
    AND t.project_id = s.project_id AND t.agent_id = s.agent_id
    AND t.message_type IN {turn_types}
CROSS JOIN LATERAL (SELECT state.as_count(substring(s.step_id FROM '-s([0-9]+)$')) AS number) n
CROSS JOIN LATERAL (SELECT {box_of_turn(t, n.number)} AS output_box_id) b
WHERE (t.inbox_id IS NULL OR s.status = 'running' OR s.ended_at IS NULL OR s.channel_id IS DISTINCT FROM t.channel_id
       OR s.trace_id IS DISTINCT FROM split_part(t.context_headers ->> 'traceparent', '-', 2)
       OR (s.profile_box_id::text, s.context_box_id::text, s.output_box_id::text)
          IS DISTINCT FROM (t.payload ->> 'profile_box_id', t.payload ->> 'context_box_id', b.output_box_id))
  AND NOT starts_with(s.step_id, 'step_')
  AND (:since_id::text IS NULL OR s.step_id >= :since_id)
  AND (:project_id::text IS NULL OR s.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: an_ending_step_is_the_last :many
-- Protocol §7.7: a step that ended its turn is its last, and the turn has an outcome: failed after a failed step,
-- canceled after a canceled one.
SELECT jsonb_build_object('project_id', s.project_id, 'agent_turn_id', s.agent_turn_id, 'step_id', s.step_id) AS ids,
       format('the step is %s and the end, and %s', s.status,
              CASE WHEN o.agent_turn_id IS NULL THEN 'the turn has no outcome'
           WHEN x.step_id IS NULL THEN 'the outcome is ' || o.status ELSE 'another one follows' END) AS detail
FROM state.agent_steps s
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = s.agent_turn_id
CROSS JOIN LATERAL (SELECT substr(s.step_id, length(s.agent_turn_id) + 3) AS digits) n
LEFT JOIN state.agent_steps x ON x.step_id = s.agent_turn_id || '-s'
        || CASE WHEN pg_input_is_valid(n.digits, 'integer') THEN n.digits::int + 1 END
WHERE (s.status IN ('failed', 'canceled') OR s.metadata ->> 'next' = 'end')
  AND (o.agent_turn_id IS NULL OR x.step_id IS NOT NULL
       OR (s.status IN ('failed', 'canceled') AND o.status <> s.status))
  AND (:since_id::text IS NULL OR s.step_id >= :since_id)
  AND (:project_id::text IS NULL OR s.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: calls_of_a_step :many
-- Protocol §7.4: each call of a step was sent, so that it has a waiting row, or refused, so that its result is in the
-- output box.
SELECT jsonb_build_object('project_id', s.project_id, 'agent_turn_id', s.agent_turn_id,
                          'step_id', s.step_id, 'tool_call_id', s.call) AS ids,
       'the step made this call, which has neither a waiting row nor a result' AS detail
FROM (
    SELECT s.project_id, s.agent_turn_id, s.step_id, s.output_box_id, jsonb_array_elements_text(s.tool_call_ids) AS call
    FROM state.agent_steps s
    WHERE jsonb_typeof(s.tool_call_ids) = 'array' AND s.tool_call_ids <> '[]'
      AND (:since_id::text IS NULL OR s.step_id >= :since_id)
      AND (:project_id::text IS NULL OR s.project_id = :project_id)
) s
LEFT JOIN state.turn_waiting_tools w ON w.tool_call_id = s.call
    AND w.project_id = s.project_id AND w.step_id = s.step_id
LEFT JOIN public.box_cards b ON b.card_id = s.call || '-result' AND b.box_id = s.output_box_id
WHERE w.tool_call_id IS NULL AND b.card_id IS NULL
ORDER BY ids LIMIT :row_limit::int;

-- name: an_action_is_one_call :many
-- Protocol §7.10: a UI action has one step and one call at most, of the tool it names, asks no model, and succeeds by
-- the call's result.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_id', t.agent_id, 'agent_turn_id', t.agent_turn_id) AS ids,
       format('the action has %s steps and %s calls, %s of them of another tool, and asked a model %s times%s',
              count(DISTINCT s.step_id), count(DISTINCT w.tool_call_id),
              count(DISTINCT w.tool_call_id) FILTER (WHERE w.tool_name <> t.payload -> 'ui_action' ->> 'tool_name'),
              count(DISTINCT s.step_id) FILTER (WHERE s.metadata -> 'attempts' <> '[]'),
              CASE WHEN bool_or(o.status = 'success' AND o.tool_result_card_id IS NULL)
                        THEN ', and succeeded without a result' END) AS detail
FROM state.agent_inbox t
LEFT JOIN state.agent_steps s ON s.agent_turn_id = t.agent_turn_id
LEFT JOIN state.turn_waiting_tools w ON w.agent_turn_id = t.agent_turn_id
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = t.agent_turn_id
WHERE t.message_type = 'ui_action' AND t.request_digest IS NOT NULL
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
GROUP BY t.inbox_id
HAVING count(DISTINCT s.step_id) > 1 OR count(DISTINCT w.tool_call_id) > 1
    OR bool_or(w.tool_name <> t.payload -> 'ui_action' ->> 'tool_name') OR bool_or(s.metadata -> 'attempts' <> '[]')
    OR bool_or(o.status = 'success' AND o.tool_result_card_id IS NULL)
ORDER BY ids LIMIT :row_limit::int;

-- name: call_agrees_with_its_step :many
-- Protocol §6 command_intent: a call is of a committed step of its turn, at the turn's epoch.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id, 'tool_call_id', w.tool_call_id,
                          'step_id', w.step_id) AS ids,
       concat_ws(', ', CASE WHEN s.step_id IS NULL THEN 'the call is of no step of its turn' END,
                 CASE WHEN w.turn_epoch <> t.turn_epoch THEN format('it has epoch %s and its turn %s', w.turn_epoch,
                                                                    t.turn_epoch) END) AS detail
FROM state.agent_inbox t JOIN state.turn_waiting_tools w ON w.agent_turn_id = t.agent_turn_id
LEFT JOIN state.agent_steps s ON s.step_id = w.step_id AND s.project_id = w.project_id
    AND s.agent_turn_id = w.agent_turn_id
    AND s.agent_id = w.agent_id
WHERE t.message_type IN {turn_types} AND (s.step_id IS NULL OR w.turn_epoch <> t.turn_epoch)
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: waiting_counts_agree :many
-- Protocol §4.2: a suspended head waits for as many calls as it has open rows; no other head waits, or has a deadline.
SELECT jsonb_build_object('project_id', h.project_id, 'agent_id', h.agent_id,
                          'agent_turn_id', h.active_agent_turn_id) AS ids,
       format('the head is %s and counts %s calls, %s are open%s', h.status, h.waiting_tool_count, w.open,
              CASE WHEN h.status <> 'suspended' AND h.resume_deadline IS NOT NULL
                        THEN ', and it has a deadline' END) AS detail
FROM state.agent_state_head h
CROSS JOIN LATERAL (
    SELECT count(*) AS open FROM state.turn_waiting_tools w
    WHERE w.agent_turn_id = h.active_agent_turn_id AND w.turn_epoch = h.turn_epoch
      AND w.wait_status IN ('waiting', 'received')) w
WHERE (h.waiting_tool_count <> w.open OR (h.status = 'suspended') <> (h.waiting_tool_count > 0)
       OR (h.status <> 'suspended' AND h.resume_deadline IS NOT NULL))
  AND (:project_id::text IS NULL OR h.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: heads_have_the_earliest_deadline :many
-- Protocol §7.6: a suspended head has no later deadline than a call that waits; one whose timeout is injected does not
-- count, nor one whose tool still asks a person when its deadline has passed.
SELECT jsonb_build_object('project_id', h.project_id, 'agent_id', h.agent_id, 'agent_turn_id', h.active_agent_turn_id,
                          'tool_call_id', w.tool_call_id) AS ids,
       format('the call has until %s, and its head %s', w.deadline,
              coalesce(h.resume_deadline::text, 'no deadline')) AS detail
FROM state.agent_state_head h
JOIN state.turn_waiting_tools w ON w.agent_turn_id = h.active_agent_turn_id AND w.turn_epoch = h.turn_epoch
WHERE h.status = 'suspended' AND w.wait_status = 'waiting' AND w.held_by IS NULL
  AND NOT (w.left_seconds IS NOT NULL AND w.deadline <= now())
  AND (h.resume_deadline IS NULL AND w.deadline IS NOT NULL OR h.resume_deadline > w.deadline)
  AND NOT EXISTS (SELECT FROM state.agent_inbox i
                  WHERE i.correlation_id = w.tool_call_id AND i.project_id = w.project_id
                  AND i.message_type = 'timeout')
  AND (:project_id::text IS NULL OR h.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: nobody_waits_for_an_ended_turn :many
-- Protocol §3: only the turn on a head waits for calls, at its epoch. Of a window: calls of turns enqueued in it, over
-- since, or in hand.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id,
                          'tool_call_id', w.tool_call_id) AS ids,
       format('the call is %s, and no agent has its turn in hand', w.wait_status) AS detail
FROM (
    SELECT w.* FROM {of_turns_since(state.turn_waiting_tools, agent_turn_id)} w
    UNION ALL
    SELECT w.* FROM state.turn_outcomes o JOIN state.turn_waiting_tools w ON w.agent_turn_id = o.agent_turn_id
    WHERE o.ended_at >= :since AND o.agent_turn_id < :since_id) w
LEFT JOIN state.agent_state_head h ON h.active_agent_turn_id = w.agent_turn_id
    AND h.agent_id = w.agent_id AND h.turn_epoch = w.turn_epoch
WHERE w.wait_status IN ('waiting', 'received') AND h.agent_id IS NULL
  AND (:project_id::text IS NULL OR w.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: a_received_call_has_a_live_report :many
-- Protocol §6 report: a call with status received has a report that will be applied, since such a call never expires.
-- Of a window, as the next rule: calls of turns enqueued in it, or in hand.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id,
                          'tool_call_id', w.tool_call_id) AS ids,
       'the call is received, and has no live report' AS detail
FROM {of_turns_since(state.turn_waiting_tools, agent_turn_id)} w
LEFT JOIN state.agent_inbox i ON i.correlation_id = w.tool_call_id
    AND i.project_id = w.project_id AND i.message_type = 'tool_result'
    AND i.archived_at IS NULL
WHERE w.wait_status = 'received' AND i.inbox_id IS NULL AND (:project_id::text IS NULL OR w.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: a_consumed_report_has_a_settled_call :many
-- Protocol §2.7: no report is lost: a consumed report was applied, or its call was settled by another report.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id, 'tool_call_id', w.tool_call_id,
                          'inbox_id', i.inbox_id) AS ids,
       format('the report is consumed, and the call still %s', w.wait_status) AS detail
FROM {of_turns_since(state.turn_waiting_tools, agent_turn_id)} w
JOIN state.agent_inbox i ON i.correlation_id = w.tool_call_id AND i.project_id = w.project_id
    AND i.message_type IN {report_types} AND i.status = 'consumed'
WHERE w.wait_status IN ('waiting', 'received') AND (:project_id::text IS NULL OR w.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: one_winner_a_call :many
-- Protocol §2.8: of the reports of an applied or expired call one won, a result or a timeout: it is consumed without a
-- reason, or was given up with a result in its place.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id,
                          'tool_call_id', w.tool_call_id) AS ids,
       format('the call is %s, and %s of its reports won', w.wait_status, count(i.inbox_id)) AS detail
FROM state.turn_waiting_tools w
LEFT JOIN state.agent_inbox i ON i.correlation_id = w.tool_call_id AND i.project_id = w.project_id
    AND i.message_type = CASE w.wait_status WHEN 'expired' THEN 'timeout' ELSE 'tool_result' END
    AND ((i.status = 'consumed' AND i.last_error IS NULL)
         OR (i.status = 'error' AND i.last_error = 'resume_retry_exhausted'))
WHERE w.wait_status IN ('applied', 'expired')
  AND (:since_id::text IS NULL OR w.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR w.project_id = :project_id)
GROUP BY w.project_id, w.agent_turn_id, w.tool_call_id, w.wait_status HAVING count(i.inbox_id) <> 1
ORDER BY ids LIMIT :row_limit::int;

-- name: a_losing_report_changed_nothing :many
-- Protocol §2.8: a report that is consumed without a reason is the one that settled its call.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id, 'tool_call_id', w.tool_call_id,
                          'inbox_id', i.inbox_id) AS ids,
       format('the %s says it was applied, and the call is %s', i.message_type, w.wait_status) AS detail
FROM state.agent_inbox i JOIN state.turn_waiting_tools w ON w.tool_call_id = i.correlation_id
    AND w.project_id = i.project_id
WHERE i.message_type IN {report_types} AND i.status = 'consumed' AND i.last_error IS NULL
  AND w.wait_status NOT IN ('waiting', 'received')
  AND w.wait_status <> CASE i.message_type WHEN 'timeout' THEN 'expired' ELSE 'applied' END
  AND (:since::timestamptz IS NULL OR i.created_at >= :since)
  AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: one_result_a_call :many
-- Protocol §2.8: the output box has one tool.result for a call that is applied or expired, the one that the call names;
-- none for an open call; one for a dropped call that had its card (without a card it was dropped while its turn went
-- on, §7.6).
WITH calls AS (
    SELECT w.project_id, w.agent_turn_id, w.tool_call_id, w.wait_status, w.tool_result_card_id, s.output_box_id
    FROM state.turn_waiting_tools w
    JOIN state.agent_steps s ON s.step_id = w.step_id AND s.project_id = w.project_id
    WHERE (:since_id::text IS NULL OR w.agent_turn_id >= :since_id)
      AND (:project_id::text IS NULL OR w.project_id = :project_id)
),
results AS (
    SELECT b.box_id, c.tool_call_id, count(*) AS results, min(c.card_id) AS card_id
    FROM (SELECT DISTINCT output_box_id FROM calls) x
    JOIN public.box_cards b ON b.box_id = x.output_box_id JOIN public.cards c ON c.card_id = b.card_id
    WHERE c.metadata ->> 'type' = 'tool.result' AND c.tool_call_id IS NOT NULL
    GROUP BY b.box_id, c.tool_call_id
)
SELECT jsonb_build_object('project_id', c.project_id, 'agent_turn_id', c.agent_turn_id, 'tool_call_id', c.tool_call_id,
                          'card_id', r.card_id, 'box_id', c.output_box_id) AS ids,
       format('the call is %s, and its output box has %s', c.wait_status,
              CASE coalesce(r.results, 0) WHEN 1 THEN 'a result that it does not name'
                   ELSE coalesce(r.results, 0) || ' results' END) AS detail
FROM calls c LEFT JOIN results r ON r.box_id = c.output_box_id AND r.tool_call_id = c.tool_call_id
WHERE CASE
    WHEN c.wait_status IN ('applied', 'expired') THEN (r.results, r.card_id) IS DISTINCT FROM (1, c.tool_result_card_id)
    WHEN c.wait_status IN ('waiting', 'received') THEN r.results IS NOT NULL
    ELSE r.results > 1 OR (r.results IS NULL AND EXISTS (SELECT FROM public.cards k
                                                         WHERE k.card_id = c.tool_call_id || '-call')) END
ORDER BY ids LIMIT :row_limit::int;

-- name: results_are_their_calls :many
-- Protocol §6 report: an applied or expired call, and no other, names a result: a tool.result of its project and call,
-- by a service or the system.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id, 'tool_call_id', w.tool_call_id,
                          'card_id', w.tool_result_card_id) AS ids,
       CASE WHEN (w.wait_status IN ('applied', 'expired')) <> (w.tool_result_card_id IS NOT NULL)
            THEN format('the call is %s and names %s result', w.wait_status,
                        CASE WHEN w.tool_result_card_id IS NULL THEN 'no' ELSE 'a' END)
            WHEN (w.wait_status IN ('applied', 'expired')) <> (w.applied_at IS NOT NULL)
            THEN format('the call is %s and %s applied', w.wait_status,
                        CASE WHEN w.applied_at IS NULL THEN 'was not' ELSE 'was' END)
            WHEN c.card_id IS NULL THEN 'its result is no card of the project'
            ELSE 'its result is no tool.result for it, by a service or the system' END AS detail
FROM state.turn_waiting_tools w
LEFT JOIN public.cards c ON c.card_id = w.tool_result_card_id AND c.tenant_id = w.project_id
WHERE ((w.wait_status IN ('applied', 'expired')) <> (w.tool_result_card_id IS NOT NULL)
       OR (w.wait_status IN ('applied', 'expired')) <> (w.applied_at IS NOT NULL)
       OR (w.tool_result_card_id IS NOT NULL
           AND (c.metadata ->> 'type' = 'tool.result' AND c.tool_call_id = w.tool_call_id
                AND state.is_service(c.metadata ->> 'author_id')) IS NOT TRUE))
  AND (:since_id::text IS NULL OR w.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR w.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: turns_have_their_edge :many
-- Protocol §4.3: every turn that L0 enqueued has its edge enqueue/request, with its correlation, trace and depth.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_id', t.agent_id, 'agent_turn_id', t.agent_turn_id,
                          'inbox_id', t.inbox_id) AS ids,
       'no edge enqueue/request has its correlation, agent, trace and depth' AS detail
FROM state.agent_inbox t
LEFT JOIN state.execution_edges e ON e.edge_id = 'enqueue-' || t.agent_turn_id
    AND e.correlation_id = t.correlation_id AND e.project_id = t.project_id
    AND e.primitive = 'enqueue' AND e.edge_phase = 'request' AND e.target_agent_turn_id = t.agent_turn_id
    AND e.target_agent_id = t.agent_id
    AND e.recursion_depth::text = t.context_headers ->> 'CG-Recursion-Depth'
    AND e.trace_id = split_part(t.context_headers ->> 'traceparent', '-', 2)
WHERE t.message_type IN {turn_types} AND t.request_digest IS NOT NULL AND e.edge_id IS NULL
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: edges_have_their_turn :many
-- Protocol §4.3: every edge enqueue/request has the inbox row of its turn. One that names no turn is a call of v1r4's
-- bench.
SELECT jsonb_build_object('project_id', e.project_id, 'agent_id', e.target_agent_id,
                          'agent_turn_id', e.target_agent_turn_id,
                          'edge_id', e.edge_id) AS ids, 'no inbox row enqueues the turn of this edge' AS detail
FROM state.execution_edges e
LEFT JOIN state.agent_inbox t ON t.agent_turn_id = e.target_agent_turn_id
    AND t.project_id = e.project_id AND t.agent_id = e.target_agent_id
    AND t.message_type IN {turn_types}
WHERE e.primitive = 'enqueue' AND t.inbox_id IS NULL AND e.target_agent_turn_id IS NOT NULL
  AND (:since_id::text IS NULL OR (e.edge_id >= 'enqueue-' || :since_id AND e.edge_id < 'enqueue-1'))
  AND (:project_id::text IS NULL OR e.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: calls_have_their_edges :many
-- Protocol §4.3: a call has one edge tool_call/request, to its caller, with the turn's trace and depth; a reported one
-- has one edge report/response back to it, and an open one none.
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id,
                          'tool_call_id', w.tool_call_id) AS ids,
       CASE WHEN count(DISTINCT e.edge_id) <> 1
                 THEN format('%s edges tool_call/request fit the call', count(DISTINCT e.edge_id))
            ELSE format('the call is %s and has %s edges report/response', w.wait_status,
                        count(DISTINCT r.edge_id)) END AS detail
FROM state.agent_inbox t JOIN state.turn_waiting_tools w ON w.agent_turn_id = t.agent_turn_id
LEFT JOIN state.execution_edges e ON md5(e.correlation_id) = md5(w.tool_call_id)
    AND e.project_id = w.project_id AND e.primitive = 'tool_call'
    AND e.edge_phase = 'request' AND e.source_agent_turn_id = w.agent_turn_id
    AND e.target_agent_turn_id = w.agent_turn_id
    AND e.source_step_id = w.step_id AND e.recursion_depth::text = t.context_headers ->> 'CG-Recursion-Depth'
    AND e.trace_id = split_part(t.context_headers ->> 'traceparent', '-', 2)
LEFT JOIN state.execution_edges r ON md5(r.correlation_id) = md5(w.tool_call_id)
    AND r.project_id = w.project_id AND r.primitive = 'report'
    AND r.edge_phase = 'response' AND r.target_agent_turn_id = w.agent_turn_id
WHERE t.message_type IN {turn_types}
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
GROUP BY w.project_id, w.agent_turn_id, w.tool_call_id, w.wait_status, w.received_at
HAVING count(DISTINCT e.edge_id) <> 1 OR count(DISTINCT r.edge_id) > 1
   OR (w.received_at IS NOT NULL AND count(r.edge_id) = 0)
ORDER BY ids LIMIT :row_limit::int;

-- name: edges_have_their_call :many
-- Protocol §6 command_intent: every edge tool_call/request of ours has the waiting row of its call. (A UI worker's has
-- none.) For a window: the edges in the traces of turns that are over since then, or on heads.
SELECT jsonb_build_object('project_id', e.project_id, 'agent_turn_id', e.source_agent_turn_id,
                          'tool_call_id', e.correlation_id,
                          'edge_id', e.edge_id) AS ids, 'no waiting row is of the call of this edge' AS detail
FROM (
    SELECT e.* FROM state.execution_edges e WHERE :since::timestamptz IS NULL
    UNION ALL
    SELECT e.* FROM (
        SELECT o.trace_id FROM state.turn_outcomes o WHERE o.ended_at >= :since
        UNION
        SELECT h.trace_id FROM state.agent_state_head h WHERE h.status <> 'idle') t
    CROSS JOIN LATERAL (SELECT x.* FROM state.execution_edges x WHERE x.trace_id = t.trace_id {by_key}) e
    WHERE :since IS NOT NULL AND e.created_at >= :since) e
LEFT JOIN state.turn_waiting_tools w ON w.tool_call_id = e.correlation_id AND w.project_id = e.project_id
WHERE e.primitive = 'tool_call' AND e.enqueue_mode IS NULL AND w.tool_call_id IS NULL
  AND (:project_id::text IS NULL OR e.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: one_depth_a_call :many
-- Protocol §4.3: the edges of a call and the inbox rows that L0 wrote for it carry one depth. (A row that a tool wrote
-- by SQL keeps ids in its payload, and its edge may lack a depth.)
SELECT jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id,
                          'tool_call_id', w.tool_call_id) AS ids,
       format('the depth of the call is %s, of its report edge %s, of its inbox row %s', e.recursion_depth,
              coalesce(r.recursion_depth::text, 'none'),
              coalesce(i.context_headers ->> 'CG-Recursion-Depth', 'none')) AS detail
FROM state.turn_waiting_tools w
JOIN state.execution_edges e ON md5(e.correlation_id) = md5(w.tool_call_id)
    AND e.project_id = w.project_id AND e.primitive = 'tool_call'
LEFT JOIN state.execution_edges r ON md5(r.correlation_id) = md5(w.tool_call_id)
    AND r.project_id = w.project_id AND r.primitive = 'report'
LEFT JOIN state.agent_inbox i ON i.correlation_id = w.tool_call_id AND i.project_id = w.project_id
    AND i.message_type IN {report_types} AND i.enqueue_mode = 'report' AND NOT i.payload ? 'tool_call_id'
WHERE (r.recursion_depth <> e.recursion_depth OR i.context_headers ->> 'CG-Recursion-Depth' <> e.recursion_depth::text)
  AND (:since_id::text IS NULL OR w.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR w.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: children_are_deeper :many
-- Protocol §2.11: a child's depth is its parent turn's and one more, or what its headers said if that is more, and
-- below the limit.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_turn_id', t.agent_turn_id,
                          'parent_turn_id', p.agent_turn_id) AS ids,
       format('its depth is %s, its parent''s %s, the limit %s', coalesce(d.depth::text, 'unknown'),
              coalesce(d.parent_depth::text, 'unknown'),
              :depth_limit::int) AS detail
FROM state.agent_inbox t
LEFT JOIN state.agent_inbox p ON p.agent_turn_id = t.context_headers ->> 'CG-Parent-Turn-Id'
    AND p.project_id = t.project_id
    AND p.message_type IN {turn_types}
CROSS JOIN LATERAL (SELECT t.context_headers ->> 'CG-Recursion-Depth' AS own,
                           p.context_headers ->> 'CG-Recursion-Depth' AS parent) h
CROSS JOIN LATERAL (SELECT CASE WHEN pg_input_is_valid(h.own, 'integer') THEN h.own::int END AS depth,
                           CASE WHEN pg_input_is_valid(h.parent, 'integer') THEN h.parent::int END AS parent_depth) d
WHERE t.message_type IN {turn_types} AND t.request_digest IS NOT NULL
  AND (d.depth > coalesce(d.parent_depth, -1) AND d.depth < :depth_limit::int) IS NOT TRUE
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: call_steps_are_whole :many
-- Protocol §21: the steps of a call are of its turn, number from 1 without a gap, within their bounds, and what a model
-- used for one is booked.
SELECT jsonb_build_object('project_id', s.project_id, 'agent_turn_id', s.agent_turn_id,
                          'tool_call_id', s.tool_call_id) AS ids,
       CASE WHEN w.tool_call_id IS NULL THEN 'its turn has no such call'
            WHEN s.steps <> s.last THEN format('the last of its %s steps has the number %s', s.steps, s.last)
            WHEN s.unbooked > 0 THEN format('what %s of its steps used is not booked so', s.unbooked)
            ELSE format('its values have %s bytes', s.bytes) END AS detail
FROM (
    SELECT x.project_id, x.agent_turn_id, x.tool_call_id, count(DISTINCT x.seq) AS steps, max(x.seq) AS last,
           sum(x.bytes) AS bytes, count(*) FILTER (WHERE x.attempt IS NOT NULL AND r.attempt IS NULL) AS unbooked
    FROM {of_turns_since(state.call_steps, agent_turn_id)} x
    LEFT JOIN state.budget_reservations r ON r.agent_turn_id = x.agent_turn_id AND r.attempt = x.attempt
        AND (r.used_tokens, r.used_cost) = (x.tokens, x.cost)
    WHERE :project_id::text IS NULL OR x.project_id = :project_id
    GROUP BY x.project_id, x.agent_turn_id, x.tool_call_id) s
LEFT JOIN state.turn_waiting_tools w ON w.tool_call_id = s.tool_call_id AND w.project_id = s.project_id
    AND w.agent_turn_id = s.agent_turn_id
WHERE w.tool_call_id IS NULL OR s.steps <> s.last OR s.unbooked > 0 OR s.bytes > 16777216
ORDER BY ids LIMIT :row_limit::int;
