-- Protocol §2 over a whole database: each query names the rows that break it.

-- name: one_active_turn :many
-- A live turn is on one head, its inbox row names its agent and epoch, and it has no outcome (§2.1).
SELECT h.agent_id, h.active_agent_turn_id, h.status FROM state.agent_state_head h
LEFT JOIN state.agent_inbox i ON i.inbox_id = h.active_inbox_id
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = h.active_agent_turn_id
WHERE h.status <> 'idle' AND (
    i.inbox_id IS NULL OR i.agent_turn_id <> h.active_agent_turn_id OR i.agent_id <> h.agent_id OR i.turn_epoch <> h.turn_epoch
    OR o.agent_turn_id IS NOT NULL
    OR (h.status = 'dispatched') <> (i.archived_at IS NULL)
    OR (SELECT count(*) FROM state.agent_state_head x WHERE x.active_agent_turn_id = h.active_agent_turn_id) > 1);

-- name: every_turn_is_somewhere :many
-- A turn is queued, or live on its head, or has its outcome; an archived row of a turn is live or has one (§2.3, §2.5).
SELECT i.agent_turn_id, i.status, o.status AS outcome, h.status AS head FROM state.agent_inbox i
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id
LEFT JOIN state.agent_state_head h ON h.active_agent_turn_id = i.agent_turn_id
WHERE i.message_type IN ('turn', 'ui_action')
  AND (i.status = 'queued')::int + (h.agent_id IS NOT NULL)::int + (o.agent_turn_id IS NOT NULL)::int <> 1;

-- name: one_turn_a_row :many
-- One enqueue is one turn, and no two rows name one (§2.5).
SELECT i.agent_turn_id FROM state.agent_inbox i WHERE i.message_type IN ('turn', 'ui_action')
GROUP BY i.agent_turn_id HAVING count(*) > 1;

-- name: outcome_without_a_turn :many
-- One outcome per turn, and none that nobody asked for (§2.3).
SELECT o.agent_turn_id FROM state.turn_outcomes o
LEFT JOIN state.agent_inbox i ON i.agent_turn_id = o.agent_turn_id AND i.inbox_id = o.inbox_id AND i.agent_id = o.agent_id
WHERE i.inbox_id IS NULL OR o.turn_epoch <> i.turn_epoch;

-- name: deliverable_in_its_box :many
-- Every outcome has one task.deliverable card of its turn, once, in the output box that it names (§2.3).
SELECT o.agent_turn_id, o.status FROM state.turn_outcomes o
WHERE 1 <> (SELECT count(*) FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
            WHERE b.box_id = o.output_box_id AND c.metadata ->> 'type' = 'task.deliverable'
              AND c.metadata ->> 'agent_turn_id' = o.agent_turn_id)
   OR NOT EXISTS (SELECT FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
                  WHERE b.box_id = o.output_box_id AND c.card_id = o.deliverable_card_id
                    AND c.metadata ->> 'agent_turn_id' = o.agent_turn_id);

-- name: no_idle_head_with_a_free_turn :many
-- An idle agent has no turn that could run (the stranded rule apart, which serves boxes that others held).
SELECT q.agent_id, q.agent_turn_id FROM state.queued_turns q
JOIN state.agent_state_head h ON h.agent_id = q.agent_id AND h.project_id = q.project_id
WHERE h.status = 'idle' AND NOT EXISTS (SELECT FROM state.agent_state_head b WHERE b.output_box_id = q.output_box_id);

-- name: first_come_first_served :many
-- Turns of an agent in boxes that no other agent shares ran in the order in which they were enqueued, on rising epochs.
SELECT t.agent_id, t.agent_turn_id, t.turn_epoch, t.previous FROM (
    SELECT i.agent_id, i.agent_turn_id, i.turn_epoch,
           lag(i.turn_epoch) OVER (PARTITION BY i.project_id, i.agent_id ORDER BY i.created_at) AS previous
    FROM state.agent_inbox i
    WHERE i.message_type = 'turn' AND i.turn_epoch > 0 AND NOT EXISTS (
        SELECT FROM state.agent_inbox x WHERE x.agent_id <> i.agent_id
          AND x.payload ->> 'output_box_id' = i.payload ->> 'output_box_id')) t
WHERE t.turn_epoch <= t.previous;

-- name: epoch_of_two_turns :many
-- An epoch of an agent belongs to one turn, and the head's is the highest.
SELECT i.agent_id, i.turn_epoch FROM state.agent_inbox i
JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
WHERE i.message_type = 'turn' AND i.turn_epoch > 0
GROUP BY i.project_id, i.agent_id, i.turn_epoch, h.turn_epoch HAVING count(*) > 1 OR i.turn_epoch > h.turn_epoch;

-- name: edges_match :many
-- Every turn has its enqueue edge, with its row's correlation, trace and depth, and every such edge its turn.
SELECT i.agent_turn_id, e.target_agent_turn_id FROM (SELECT * FROM state.agent_inbox WHERE message_type = 'turn') i
FULL JOIN (SELECT * FROM state.execution_edges WHERE primitive = 'enqueue') e
    ON e.target_agent_turn_id = i.agent_turn_id AND e.target_agent_id = i.agent_id AND e.correlation_id = i.correlation_id
   AND e.recursion_depth = (i.context_headers ->> 'CG-Recursion-Depth')::int
   AND e.trace_id = split_part(i.context_headers ->> 'traceparent', '-', 2)
WHERE i.agent_turn_id IS NULL OR e.target_agent_turn_id IS NULL;

-- name: positions_without_gaps :many
-- The positions of a box are 1 to n.
SELECT b.box_id, count(*), max(b.position) FROM public.box_cards b GROUP BY b.box_id
HAVING count(*) <> max(b.position) OR min(b.position) <> 1;

-- name: card_in_two_places :many
-- What a turn wrote is in one box, once.
SELECT b.card_id FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
WHERE c.metadata ->> 'type' IN ('agent.thought', 'tool.result', 'tool.call', 'task.deliverable')
GROUP BY b.card_id HAVING count(*) > 1;

-- name: card_without_a_box :many
-- No card was written by half; only results that no call took lie about.
SELECT c.card_id FROM public.cards c
WHERE NOT EXISTS (SELECT FROM public.box_cards b WHERE b.card_id = c.card_id)
  AND (c.metadata ->> 'type' <> 'tool.result'
       OR EXISTS (SELECT FROM state.turn_waiting_tools w WHERE w.tool_result_card_id = c.card_id));

-- name: box_without_a_row :many
-- The boxes of a turn exist.
SELECT i.agent_turn_id, b.name FROM state.agent_inbox i
CROSS JOIN LATERAL (VALUES ('context_box_id'), ('output_box_id'), ('profile_box_id')) b (name)
WHERE i.message_type = 'turn' AND NOT EXISTS (SELECT FROM public.boxes x WHERE x.box_id = state.as_uuid(i.payload ->> b.name));

-- name: context_boxes_never_change :many
-- Every card of a context box came in the transaction that made the box (§2.9), unless turns wrote there before.
SELECT b.box_id, c.card_id FROM public.boxes b JOIN public.box_cards c ON c.box_id = b.box_id
WHERE c.xmin <> b.xmin
  AND EXISTS (SELECT FROM state.agent_inbox i WHERE i.payload ->> 'context_box_id' = b.box_id::text)
  AND NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.payload ->> 'output_box_id' = b.box_id::text);

-- name: waiting_counts_agree :many
-- A suspended head waits for as many calls as it has unanswered rows; nobody else waits, or has a deadline.
SELECT h.agent_id, h.status, h.waiting_tool_count FROM state.agent_state_head h
WHERE h.waiting_tool_count <> (
    SELECT count(*) FROM state.turn_waiting_tools w
    WHERE w.agent_turn_id = h.active_agent_turn_id AND w.turn_epoch = h.turn_epoch AND w.wait_status IN ('waiting', 'received'))
   OR (h.status = 'suspended') <> (h.waiting_tool_count > 0) OR (h.status <> 'suspended' AND h.resume_deadline IS NOT NULL);

-- name: nobody_waits_for_an_ended_turn :many
-- An ended turn leaves no call waiting.
SELECT w.tool_call_id FROM state.turn_waiting_tools w JOIN state.turn_outcomes o ON o.agent_turn_id = w.agent_turn_id
WHERE w.wait_status IN ('waiting', 'received');

-- name: one_result_a_call :many
-- Exactly one tool.result per settled call is in the output box of its turn, none for an open one (§2.8), or for one that
-- had no card and was dropped while its turn went on (§7.6).
SELECT w.tool_call_id, w.wait_status FROM state.turn_waiting_tools w
JOIN state.agent_steps s ON s.step_id = w.step_id AND s.project_id = w.project_id
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE b.box_id = s.output_box_id) AS here, count(*) AS anywhere
    FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
    WHERE c.tool_call_id = w.tool_call_id AND c.tenant_id = w.project_id AND c.metadata ->> 'type' = 'tool.result') r
WHERE (r.here, r.anywhere) <> (1, 1) AND w.wait_status IN ('applied', 'expired')
   OR r.anywhere <> 0 AND w.wait_status IN ('waiting', 'received')
   OR w.wait_status = 'dropped' AND (r.here, r.anywhere) <> (1, 1) AND (r.anywhere <> 0 OR EXISTS (
          SELECT FROM public.cards c WHERE c.card_id = w.tool_call_id || '-call'));

-- name: applied_results_are_in_the_box :many
-- The card that an applied or expired call names is the tool.result in its turn's box, by its tool or the system, and a
-- dropped or open call names none.
SELECT w.tool_call_id, w.wait_status, w.tool_result_card_id FROM state.turn_waiting_tools w
WHERE (w.wait_status IN ('applied', 'expired')) <> (w.tool_result_card_id IS NOT NULL)
   OR (w.wait_status IN ('applied', 'expired')) <> (w.applied_at IS NOT NULL)
   OR w.wait_status IN ('applied', 'expired') AND NOT EXISTS (
       SELECT FROM public.cards c JOIN public.box_cards b ON b.card_id = c.card_id
       JOIN state.agent_steps s ON s.step_id = w.step_id AND s.output_box_id = b.box_id
       WHERE c.card_id = w.tool_result_card_id AND c.tool_call_id = w.tool_call_id AND c.metadata ->> 'type' = 'tool.result'
         AND c.metadata ->> 'author_id' IN ('system', 'tool.' || w.tool_name));

-- name: a_consumed_report_has_a_settled_call :many
-- No report is lost: one that is consumed was applied, or its call was settled by another (§2.7).
SELECT i.inbox_id, i.correlation_id, w.wait_status FROM state.agent_inbox i
JOIN state.turn_waiting_tools w ON w.tool_call_id = i.correlation_id AND w.project_id = i.project_id
WHERE i.message_type IN ('tool_result', 'timeout') AND i.status = 'consumed' AND w.wait_status IN ('waiting', 'received');

-- name: one_winner_a_call :many
-- Of the reports of an applied or expired call exactly one was applied: it is consumed without a reason, or exhausted.
SELECT w.tool_call_id, w.wait_status FROM state.turn_waiting_tools w
WHERE w.wait_status IN ('applied', 'expired') AND 1 <> (
    SELECT count(*) FROM state.agent_inbox i
    WHERE i.correlation_id = w.tool_call_id AND i.project_id = w.project_id AND i.message_type IN ('tool_result', 'timeout')
      AND (i.status = 'consumed' AND i.last_error IS NULL OR i.last_error = 'resume_retry_exhausted'));

-- name: a_received_call_has_a_live_report :many
-- A call that says 'received' has a report that will be applied.
SELECT w.tool_call_id FROM state.turn_waiting_tools w
WHERE w.wait_status = 'received' AND NOT EXISTS (
    SELECT FROM state.agent_inbox i
    WHERE i.correlation_id = w.tool_call_id AND i.project_id = w.project_id AND i.message_type = 'tool_result'
      AND i.archived_at IS NULL);

-- name: calls_have_their_edges :many
-- Every call has its request edge, with its turn's depth and trace, and a reported one its one response edge.
SELECT w.tool_call_id, w.wait_status FROM state.turn_waiting_tools w
JOIN state.agent_inbox t ON t.agent_turn_id = w.agent_turn_id AND t.message_type IN ('turn', 'ui_action')
WHERE NOT EXISTS (
    SELECT FROM state.execution_edges e
    WHERE e.correlation_id = w.tool_call_id AND e.project_id = w.project_id AND e.primitive = 'tool_call' AND e.edge_phase = 'request'
      AND e.source_agent_turn_id = w.agent_turn_id AND e.target_agent_turn_id = w.agent_turn_id AND e.source_step_id = w.step_id
      AND e.recursion_depth = (t.context_headers ->> 'CG-Recursion-Depth')::int
      AND e.trace_id = split_part(t.context_headers ->> 'traceparent', '-', 2))
   OR (w.received_at IS NOT NULL AND NOT EXISTS (
    SELECT FROM state.execution_edges e
    WHERE e.correlation_id = w.tool_call_id AND e.project_id = w.project_id AND e.primitive = 'report' AND e.edge_phase = 'response'
      AND e.target_agent_turn_id = w.agent_turn_id));

-- name: steps_in_order :many
-- The steps of a turn are 1 to n, and a live head counts those of its turn.
SELECT s.agent_turn_id, s.found, h.step_count FROM (
    SELECT agent_turn_id, count(*) AS found, max(split_part(step_id, '-s', 2)::int) AS last
    FROM state.agent_steps GROUP BY agent_turn_id) s
LEFT JOIN state.agent_state_head h ON h.active_agent_turn_id = s.agent_turn_id
WHERE s.found <> s.last OR h.step_count <> s.found;

-- name: pointers_name_the_last_box :many
-- The pointer names the box of the agent's last turn that was on the head.
SELECT p.agent_id FROM state.agent_state_pointers p WHERE p.last_output_box_id IS DISTINCT FROM (
    SELECT o.output_box_id FROM state.turn_outcomes o
    WHERE o.agent_id = p.agent_id AND o.project_id = p.project_id AND o.turn_epoch > 0 ORDER BY o.turn_epoch DESC LIMIT 1);
