-- What must hold of trees of turns at the end of a run. Each query lists what is wrong, as a sentence in `detail`.
-- A turn was asked to stop if its node says by whom (stopped_by): then its batches and its end may be any.

-- name: batches_not_decided_once :many
-- Batches that were not decided, or more than once, as the witness counted (lab/chaos/witness.sql).
SELECT format('batch %s of turn %s is %s and was decided %s times', b.batch_id, b.parent_agent_turn_id, b.status, count(d.batch_id)) AS detail
FROM state.pmo_batches b LEFT JOIN chaos.decisions d ON d.batch_id = b.batch_id
GROUP BY b.batch_id HAVING b.status = 'running' OR b.decided_at IS NULL OR count(d.batch_id) <> 1;

-- name: calls_not_answered_once :many
-- Calls of batches that were not answered once with what the batch came to; those of a turn that had ended are withdrawn.
SELECT format('call %s is %s, its batch %s; it has %s answers %s and %s results', b.parent_tool_call_id, coalesce(w.wait_status, 'missing'), b.status,
              coalesce(cardinality(a.answers), 0), a.answers, r.results) AS detail
FROM state.pmo_batches b
LEFT JOIN state.turn_waiting_tools w ON w.tool_call_id = b.parent_tool_call_id AND w.project_id = b.project_id
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = b.parent_agent_turn_id
CROSS JOIN LATERAL (SELECT array_agg(i.payload ->> 'status') AS answers FROM state.agent_inbox i
                    WHERE i.correlation_id = b.parent_tool_call_id AND i.project_id = b.project_id AND i.message_type IN ('tool_result', 'timeout')) a
CROSS JOIN LATERAL (SELECT count(*) AS results FROM public.box_cards p JOIN public.cards c ON c.card_id = p.card_id
                    WHERE p.box_id = o.output_box_id AND c.tool_call_id = b.parent_tool_call_id AND c.metadata ->> 'type' = 'tool.result') r
WHERE CASE b.status WHEN 'withdrawn' THEN a.answers IS NOT NULL
           ELSE a.answers IS DISTINCT FROM ARRAY[b.status] OR r.results <> 1 AND (o.status = 'success' OR r.results > 1) END;

-- name: answers_untrue :many
-- Answers of forks that do not have each task once and in order, or say of a task what its turn did not come to.
SELECT format('the answer to call %s says of task %s: %s, and its turn %s', b.parent_tool_call_id, coalesce(t.task_index, n.place - 1),
              coalesce(n.said ->> 'status', 'nothing'), coalesce(o.status, 'has no end')) AS detail
FROM state.pmo_batches b JOIN public.cards c ON c.card_id = b.parent_tool_call_id || '-result' AND c.tenant_id = b.project_id
CROSS JOIN LATERAL jsonb_array_elements(c.content -> 'result' -> 'results') WITH ORDINALITY n (said, place)
FULL JOIN state.pmo_batch_tasks t ON t.batch_id = b.batch_id AND t.task_index = n.place - 1
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = t.current_agent_turn_id
WHERE (b.batch_id IS NULL AND EXISTS (SELECT FROM state.pmo_batches x WHERE x.batch_id = t.batch_id AND x.answer = 'join' AND x.status <> 'withdrawn'))
   OR (b.answer = 'join' AND (t.task_index IS NULL OR (n.said ->> 'task_index')::int <> t.task_index
       OR n.said ->> 'agent_turn_id' IS DISTINCT FROM t.current_agent_turn_id
       OR (n.said ->> 'status' IN ('success', 'failed', 'partial') AND n.said ->> 'status' IS DISTINCT FROM t.status)));

-- name: children_of_nobody :many
-- Children without a call that made them: without a task where they are waited for, without a delegating call else; and turns that
-- neither a client nor a call nor a schedule asked for.
SELECT format('turn %s, a child of %s, is no task of a batch of it', n.agent_turn_id, n.parent_turn_id) AS detail
FROM state.turn_nodes n
WHERE n.parent_turn_id IS NOT NULL AND n.waited AND NOT EXISTS (
    SELECT FROM state.pmo_batch_tasks t JOIN state.pmo_batches b ON b.batch_id = t.batch_id
    WHERE t.current_agent_turn_id = n.agent_turn_id AND b.parent_agent_turn_id = n.parent_turn_id)
UNION ALL
SELECT format('turn %s, a child of %s, was delegated by no call of it', n.agent_turn_id, n.parent_turn_id)
FROM state.turn_nodes n JOIN state.agent_inbox i ON i.agent_turn_id = n.agent_turn_id AND i.message_type = 'turn'
WHERE n.parent_turn_id IS NOT NULL AND NOT n.waited AND NOT EXISTS (
    SELECT FROM state.turn_waiting_tools w WHERE w.agent_turn_id = n.parent_turn_id AND i.correlation_id = w.tool_call_id || '-0'
      AND w.tool_name IN ('delegate_async', 'launch_principal', 'ask_expert'))
UNION ALL
SELECT format('turn %s has the correlation %s, and no parent', i.agent_turn_id, i.correlation_id)
FROM state.agent_inbox i LEFT JOIN state.turn_nodes n ON n.agent_turn_id = i.agent_turn_id
WHERE i.message_type = 'turn' AND i.correlation_id NOT LIKE 'key-%' AND i.correlation_id NOT LIKE 'schedule:%'
  AND n.parent_turn_id IS NULL;

-- name: children_after_a_mark :many
-- Children that were made after their parent was marked or had ended.
SELECT format('turn %s was made at %s, its parent %s marked or over at %s', n.agent_turn_id, i.created_at, p.agent_turn_id, p.stopping_at) AS detail
FROM state.turn_nodes n JOIN state.turn_nodes p ON p.agent_turn_id = n.parent_turn_id
JOIN state.agent_inbox i ON i.agent_turn_id = n.agent_turn_id AND i.message_type = 'turn'
WHERE i.created_at > p.stopping_at;

-- name: tasks_unlike_their_turns :many
-- Tasks that are not what their turn came to, or that are still open.
SELECT format('task %s is %s, and its turn %s %s', t.batch_task_id, t.status, coalesce(t.current_agent_turn_id, '(none)'),
              coalesce(o.status, 'not over')) AS detail
FROM state.pmo_batch_tasks t LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = t.current_agent_turn_id
WHERE t.status IN ('pending', 'dispatched') OR (t.current_agent_turn_id IS NOT NULL AND (t.status, t.error_code) IS DISTINCT FROM (o.status, o.error_code));

-- name: nodes_not_over :many
-- Turns of trees that are not over, marked or not: parents and children.
SELECT format('turn %s is not over; %s', n.agent_turn_id, coalesce('it was marked at ' || n.stopping_at, 'nobody marked it')) AS detail
FROM state.turn_nodes n LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = n.agent_turn_id
WHERE o.agent_turn_id IS NULL OR NOT n.ended;

-- name: batches_unlike_their_plan :many
-- Batches of turns that nobody stopped which came to something else than the plan of the turn says.
SELECT format('batch %s of turn %s came to %s, and may come to %s', b.batch_id, b.parent_agent_turn_id, b.status, p.plan -> 'joins') AS detail
FROM state.pmo_batches b JOIN state.turn_nodes n ON n.agent_turn_id = b.parent_agent_turn_id
JOIN public.cards c ON c.card_id = b.parent_agent_turn_id || '-instruction' AND c.tenant_id = b.project_id
CROSS JOIN LATERAL (SELECT (c.content ->> 'text')::jsonb AS plan) p
WHERE n.stopped_by IS NULL AND NOT p.plan -> 'joins' ? b.status;

-- name: children_unlike_their_plan :many
-- Children that nobody stopped which ended otherwise than their plan says, and not for want of budget.
SELECT format('turn %s ended %s, %s, and its plan says %s', n.agent_turn_id, o.status, coalesce(o.error_code, 'without a code'), p.plan ->> 'ends') AS detail
FROM state.turn_nodes n JOIN state.turn_outcomes o ON o.agent_turn_id = n.agent_turn_id
JOIN public.cards c ON c.card_id = n.agent_turn_id || '-instruction' AND c.tenant_id = n.project_id
CROSS JOIN LATERAL (SELECT (c.content ->> 'text')::jsonb AS plan) p
WHERE n.parent_turn_id IS NOT NULL AND n.stopped_by IS NULL AND o.status <> p.plan ->> 'ends'
  AND o.error_code IS DISTINCT FROM 'budget_exhausted';
