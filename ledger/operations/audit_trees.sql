-- The audit's rules on batches, their tasks and the marks of trees, each of which is written in one transaction.
-- Our batches are named after their call, and its tool's after the tool's key, too; a peer's are its own affair.
-- Of a window: batches of turns enqueued in it, or in hand now.

-- name: batches_count_their_tasks :many
-- Protocol §6 join: the counts of a batch are those of its tasks: all, open, successful and failed.
SELECT jsonb_build_object('project_id', b.project_id, 'agent_turn_id', b.parent_agent_turn_id,
                          'tool_call_id', b.parent_tool_call_id,
                          'batch_id', b.batch_id) AS ids,
       format('it counts %s tasks, %s open, %s successful, %s failed, and has %s, %s, %s, %s', b.task_count,
              b.open_count, b.success_count,
              b.failed_count, n.tasks, n.open, n.successful, n.failed) AS detail
FROM {of_turns_since(state.pmo_batches, parent_agent_turn_id)} b CROSS JOIN LATERAL (
    SELECT count(*) AS tasks, count(*) FILTER (WHERE t.status IN ('pending', 'dispatched')) AS open,
           count(*) FILTER (WHERE t.status = 'success') AS successful,
           count(*) FILTER (WHERE t.status NOT IN ('pending', 'dispatched', 'success', 'partial')) AS failed
    FROM state.pmo_batch_tasks t WHERE t.batch_id = b.batch_id) n
WHERE b.batch_id = 'batch-' || b.parent_tool_call_id || coalesce('/' || b.call_key, '')
  AND (b.task_count, b.open_count, b.success_count,
       b.failed_count) IS DISTINCT FROM (n.tasks, n.open, n.successful, n.failed)
  AND (:project_id::text IS NULL OR b.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: decided_batches_have_answered :many
-- Protocol §6 join: a batch that is decided has answered its call with what it came to, or is withdrawn; one that runs
-- has not.
SELECT jsonb_build_object('project_id', b.project_id, 'agent_turn_id', b.parent_agent_turn_id,
                          'tool_call_id', b.parent_tool_call_id,
                          'batch_id', b.batch_id) AS ids,
       format('it is %s, %s, and its call %s', b.status, CASE WHEN b.decided_at IS NULL THEN 'was not decided'
                                                              ELSE 'was decided' END,
              coalesce('was answered ' || (i.payload ->> 'status'), 'was not answered')) AS detail
FROM {of_turns_since(state.pmo_batches, parent_agent_turn_id)} b
LEFT JOIN state.agent_inbox i ON i.inbox_id = 'join-' || b.batch_id
WHERE b.batch_id = 'batch-' || b.parent_tool_call_id
  AND ((b.status = 'running') <> (b.decided_at IS NULL) OR b.status = 'running' AND i.inbox_id IS NOT NULL
       OR b.status <> 'running' AND b.status <> coalesce(i.payload ->> 'status', 'withdrawn'))
  AND (:project_id::text IS NULL OR b.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: running_batches_hold_their_call :many
-- Protocol §6 join: the call of a batch that runs is held by it and waits, or its turn is over. A call of a program of
-- v1r4 has no waiting row.
SELECT jsonb_build_object('project_id', b.project_id, 'agent_turn_id', b.parent_agent_turn_id,
                          'tool_call_id', b.parent_tool_call_id,
                          'batch_id', b.batch_id) AS ids,
       coalesce(format('its call is %s and held by %s', w.wait_status, coalesce(w.held_by, 'nobody')),
                'its call is not there') AS detail
FROM {of_turns_since(state.pmo_batches, parent_agent_turn_id)} b
LEFT JOIN state.turn_waiting_tools w ON w.tool_call_id = b.parent_tool_call_id AND w.project_id = b.project_id
WHERE b.batch_id = 'batch-' || b.parent_tool_call_id AND b.status = 'running' AND b.peer_card_id IS NULL
  AND (w.wait_status, w.held_by) IS DISTINCT FROM ('waiting', b.batch_id)
  AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = b.parent_agent_turn_id {by_key})
  AND (:project_id::text IS NULL OR b.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: own_batches_keep_their_answer :many
-- Protocol §12: a batch that a tool has under its call neither holds nor answers it, and keeps what it was decided as.
SELECT jsonb_build_object('project_id', b.project_id, 'agent_turn_id', b.parent_agent_turn_id,
                          'tool_call_id', b.parent_tool_call_id,
                          'batch_id', b.batch_id) AS ids,
       format('it is %s, %s, and %s; its call is held by %s and %s', b.status,
              CASE WHEN b.decided_at IS NULL THEN 'was not decided' ELSE 'was decided' END,
              CASE WHEN b.result IS NULL THEN 'keeps no answer' ELSE 'keeps an answer' END,
              coalesce(w.held_by, 'nobody'),
              CASE WHEN i.inbox_id IS NULL THEN 'not answered by it' ELSE 'answered by it' END) AS detail
FROM {of_turns_since(state.pmo_batches, parent_agent_turn_id)} b
LEFT JOIN state.agent_inbox i ON i.inbox_id = 'join-' || b.batch_id
LEFT JOIN state.turn_waiting_tools w ON w.tool_call_id = b.parent_tool_call_id AND w.project_id = b.project_id
WHERE b.call_key IS NOT NULL
  AND ((b.status = 'running') <> (b.decided_at IS NULL) OR (b.status IN ('running', 'withdrawn')) <> (b.result IS NULL)
       OR i.inbox_id IS NOT NULL OR w.held_by = b.batch_id)
  AND (:project_id::text IS NULL OR b.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: tasks_are_their_turns :many
-- Protocol §6 join: a task is as its turn ended, and open until then; the turn of one is a child that is waited for.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_turn_id', t.current_agent_turn_id, 'batch_id', t.batch_id,
                          'parent_turn_id', b.parent_agent_turn_id) AS ids,
       CASE WHEN t.current_agent_turn_id IS NULL THEN format('task %s is %s and has no turn', t.task_index, t.status)
            WHEN n.agent_turn_id IS NULL
                 THEN format('the turn of task %s is no child that its parent waits for', t.task_index)
            ELSE format('task %s is %s, %s, and its turn %s', t.task_index, t.status,
                        coalesce(t.error_code, 'without a code'),
                        coalesce(o.status || ', ' || coalesce(o.error_code, 'without a code'),
                                 'not over')) END AS detail
FROM {of_turns_since(state.pmo_batches, parent_agent_turn_id)} b JOIN state.pmo_batch_tasks t ON t.batch_id = b.batch_id
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = t.current_agent_turn_id
LEFT JOIN state.agent_inbox i ON i.agent_turn_id = t.current_agent_turn_id AND i.message_type IN {turn_types}
LEFT JOIN state.turn_nodes n ON n.agent_turn_id = t.current_agent_turn_id
    AND n.waited AND n.parent_turn_id = b.parent_agent_turn_id
WHERE b.batch_id = 'batch-' || b.parent_tool_call_id || coalesce('/' || b.call_key, '')
  AND CASE WHEN t.current_agent_turn_id IS NULL THEN t.status NOT IN ('pending', 'failed', 'canceled', 'timeout')
           WHEN i.inbox_id IS NULL THEN false  -- retention has removed it
           ELSE n.agent_turn_id IS NULL
                OR (t.status, t.error_code) IS DISTINCT FROM (coalesce(o.status, 'dispatched'), o.error_code) END
  AND (:project_id::text IS NULL OR b.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: nodes_end_with_their_turns :many
-- Protocol §6 join: the node of a turn is ended if and only if the turn is over.
SELECT jsonb_build_object('project_id', n.project_id, 'agent_turn_id', n.agent_turn_id,
                          'parent_turn_id', n.parent_turn_id) AS ids,
       CASE WHEN n.ended THEN 'the node is ended, and the turn has no outcome'
            ELSE 'the turn is over, and its node not ended' END AS detail
FROM state.turn_nodes n LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = n.agent_turn_id
WHERE n.ended <> (o.agent_turn_id IS NOT NULL)
  AND (:since_id::text IS NULL OR n.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR n.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: marks_reach_the_children :many
-- Protocol §6 join: below a turn that is marked or over, every child that it waits for is marked or over.
SELECT jsonb_build_object('project_id', c.project_id, 'agent_turn_id', c.agent_turn_id,
                          'parent_turn_id', c.parent_turn_id) AS ids,
       format('its parent was marked at %s, and it was not', p.stopping_at) AS detail
FROM state.turn_nodes c JOIN state.turn_nodes p ON p.agent_turn_id = c.parent_turn_id
WHERE c.waited AND NOT c.ended AND c.stopping_at IS NULL AND (p.stopping_at IS NOT NULL OR p.ended)
  AND NOT state.is_let_finish(c.agent_turn_id)
  AND (:since_id::text IS NULL OR c.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR c.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;
