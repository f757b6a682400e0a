-- Trees of turns (protocol §6, join). What locks and decides is in functions of their own, each of whose statements has
-- a snapshot newer than the locks before it; these are their calls, and what callers read.

-- name: find_call :opt
-- A call that asks for children: the arguments of its card, what its turn is and sees, and whether an answer is still
-- waited for.
SELECT w.project_id, w.tool_call_id, w.tool_name, coalesce(c.content -> 'arguments', '{}') AS arguments,
       w.wait_status = 'waiting' AND h.status IS NOT DISTINCT FROM 'suspended' AS waits,
       (SELECT b.batch_id FROM state.pmo_batches b
        WHERE b.batch_id = w.held_by AND b.project_id = w.project_id) AS batch_id,
       coalesce(n.stopping_at IS NOT NULL, false) AS stopping, w.agent_id, w.agent_turn_id, w.turn_epoch,
       w.step_id, i.channel_id, coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0) AS depth,
       a.worker_target, i.context_headers,
       i.payload ->> 'profile_box_id' AS profile_box_id, i.payload -> 'guards' AS guards,
       i.payload ->> 'context_box_id' AS context_box_id,
       coalesce(h.output_box_id::text, i.payload ->> 'output_box_id') AS output_box_id,
       p.memory_context_box_id::text AS memory_context_box_id,
       p.last_output_box_id::text AS last_output_box_id, coalesce(w.deadline, h.resume_deadline) AS deadline
FROM state.turn_waiting_tools w
JOIN state.agent_inbox i ON i.agent_turn_id = w.agent_turn_id AND i.project_id = w.project_id
    AND i.message_type IN {turn_types}
JOIN resource.project_agents a ON a.agent_id = w.agent_id AND a.project_id = w.project_id
LEFT JOIN public.cards c ON c.card_id = coalesce(w.call_card_id, w.tool_call_id || '-call')
    AND c.tenant_id = w.project_id
LEFT JOIN state.agent_state_head h ON h.agent_id = w.agent_id AND h.project_id = w.project_id
    AND h.active_agent_turn_id = w.agent_turn_id AND h.turn_epoch = w.turn_epoch
LEFT JOIN state.turn_nodes n ON n.agent_turn_id = w.agent_turn_id
LEFT JOIN LATERAL state.channel_boxes(w.project_id, i.channel_id, w.agent_id) p ON true
WHERE w.tool_call_id = :tool_call_id AND w.project_id = :project_id;

-- name: open_batch :one
-- Makes the batch of a call with its tasks, and holds the call. verdict: accepted | duplicate | the code of a refusal.
SELECT state.open_batch(:project_id, :tool_call_id, :plan::jsonb, :tasks::jsonb) AS verdict;

-- name: enqueue_children :many
-- Enqueues children of a call. First a row without task_index, with the verdict on all; then a row for each that was
-- enqueued or refused.
SELECT c.task_index, c.verdict, c.agent_id, c.agent_turn_id, c.inbox_id, c.turn_epoch, c.leased_at,
       c.worker_target, c.channel_id,
       c.context_headers, c.context_box_id::text AS context_box_id, c.output_box_id::text AS output_box_id, c.refusal
FROM state.enqueue_children(:project_id, :tool_call_id, :batch_id::text, :children::jsonb,
                            :max_queued_turns::int, :max_live_turns::int, :peer_card_id::text) c;

-- name: list_tasks :many
-- The tasks of a batch in their order, with the batch's status.
SELECT b.status AS batch_status, t.task_index, t.status, t.agent_id, t.current_agent_turn_id AS agent_turn_id,
       coalesce(i.turn_epoch, t.current_turn_epoch) AS turn_epoch, i.inbox_id, t.context_box_id::text AS context_box_id,
       t.output_box_id::text AS output_box_id, t.error_code, t.label
FROM state.pmo_batches b JOIN state.pmo_batch_tasks t ON t.batch_id = b.batch_id
LEFT JOIN LATERAL (
    SELECT x.inbox_id, x.turn_epoch FROM state.agent_inbox x
    WHERE x.agent_turn_id = t.current_agent_turn_id AND x.message_type IN {turn_types} LIMIT 1 {by_key}) i ON true
WHERE b.batch_id = :batch_id AND b.project_id = :project_id ORDER BY t.task_index;

-- name: find_own_batch :opt
-- A batch that a tool has under its call: what it came to, and whether it has children that are not enqueued.
SELECT b.batch_id, b.status, b.call_digest, b.result,
       EXISTS (SELECT FROM state.pmo_batch_tasks t WHERE t.batch_id = b.batch_id AND t.status = 'pending') AS pending
FROM state.pmo_batches b WHERE b.batch_id = :batch_id AND b.project_id = :project_id AND b.call_key IS NOT NULL;

-- name: find_delegated :opt
-- A child that a call delegated before, by its correlation.
SELECT i.agent_id, i.agent_turn_id, i.turn_epoch, i.inbox_id, i.status,
       i.payload ->> 'context_box_id' AS context_box_id, i.payload ->> 'output_box_id' AS output_box_id
FROM state.agent_inbox i JOIN state.turn_nodes n ON n.agent_turn_id = i.agent_turn_id
    AND n.parent_turn_id = :parent_turn_id
WHERE i.correlation_id = :correlation_id AND i.project_id = :project_id AND i.message_type = 'turn';

-- name: expire_batch :one
-- Decides a batch whose deadline has passed or whose call waits no more; status is null if it is neither, or being
-- decided.
SELECT state.expire_batch(:batch_id) AS status;

-- name: mark_tree :one
-- Marks a turn and what its tree waits for, or all below it. marked is null if the turn is over or unknown.
SELECT state.mark_tree(:project_id, :agent_turn_id, :reason, :whole::boolean) AS marked;

-- name: count_on_their_way :one
-- How many of these marked turns had passed a gate: a step that runs, or the commands of one, may still leave.
SELECT count(*) FILTER (WHERE h.status = 'running' OR (h.status = 'suspended' AND EXISTS (
           SELECT FROM state.turn_waiting_tools w
           WHERE w.agent_turn_id = i.agent_turn_id AND w.project_id = i.project_id
             AND w.wait_status = 'waiting' AND w.held_by IS NULL {by_key}))) AS on_their_way
FROM unnest(:agent_turn_ids::text[]) t (id)
JOIN state.agent_inbox i ON i.agent_turn_id = t.id AND i.message_type IN {turn_types}
JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
    AND h.active_agent_turn_id = i.agent_turn_id;

-- name: list_rings :many
-- Whom to ring for what these ends (a turn's, a batch's, a stop's) decided and marked: parents that have their answer,
-- and turns to stop.
SELECT i.project_id, i.agent_id, i.channel_id, i.agent_turn_id, i.inbox_id, i.turn_epoch,
       a.worker_target, i.context_headers
FROM (
    SELECT 'join-' || b.batch_id AS id FROM state.pmo_batches b WHERE b.decided_by = ANY (:enders::text[])
    UNION ALL
    SELECT 'cascade-' || n.agent_turn_id FROM state.turn_nodes n
    WHERE n.stopped_by = ANY (:enders::text[]) AND NOT n.ended) x
CROSS JOIN LATERAL (
    SELECT r.* FROM state.agent_inbox r WHERE r.inbox_id = x.id AND r.archived_at IS NULL
      AND r.status = 'pending' {by_key}) i
JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id;

-- name: list_tree :many
-- Every turn of the tree that a turn is in, in the order of a walk from the root: parents first, children in the order
-- of their tasks; of one channel, after a turn of it, and at most so many, if these are given.
-- Tokens and cost are those of the turn itself; budget is its own grant, if it has one.
WITH RECURSIVE top AS (
    SELECT coalesce((SELECT n.root_turn_id FROM state.turn_nodes n
                     WHERE n.agent_turn_id = :agent_turn_id AND n.project_id = :project_id),
                    :agent_turn_id) AS root
),
walk AS (
    SELECT top.root AS agent_turn_id, NULL::text AS parent_turn_id, 0 AS depth, ARRAY['']::text[] AS path FROM top
    UNION ALL
    SELECT c.agent_turn_id, walk.agent_turn_id, walk.depth + 1, walk.path || c.place FROM walk CROSS JOIN LATERAL (
        SELECT n.agent_turn_id, to_char(i.created_at AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS')
                   || lpad(coalesce(t.task_index, 0)::text, 6, '0') || n.agent_turn_id AS place
        FROM state.turn_nodes n
        LEFT JOIN state.pmo_batch_tasks t ON t.current_agent_turn_id = n.agent_turn_id
        LEFT JOIN state.pmo_batches i ON i.batch_id = t.batch_id
        WHERE n.parent_turn_id = walk.agent_turn_id {by_key}) c
),
page AS (
    SELECT w.agent_turn_id, w.parent_turn_id, w.depth, w.path FROM walk w
    CROSS JOIN LATERAL {request_of(w.agent_turn_id)} i
    WHERE (:channel_id::text IS NULL OR i.channel_id = :channel_id)
      AND (:after_turn_id::text IS NULL OR w.path > (SELECT x.path FROM walk x WHERE x.agent_turn_id = :after_turn_id))
    ORDER BY w.path LIMIT :row_limit::int
)
SELECT w.agent_turn_id, w.parent_turn_id, w.depth, i.agent_id, coalesce(n.waited, false) AS waited,
       n.stopping_at IS NOT NULL AND NOT n.ended AS stopping, n.stop_reason, {turn_status} AS status,
       o.error_code, i.created_at, coalesce(o.started_at, h.started_at) AS started_at, o.ended_at,
       t.batch_id, t.task_index, t.label,
       b.parent_tool_call_id AS tool_call_id, b.status AS batch_status, u.tokens, u.cost, u.steps,
       (SELECT to_jsonb(g) FROM state.budgets g WHERE g.budget_id = w.agent_turn_id AND i.payload ? 'budget') AS budget
FROM page w
CROSS JOIN LATERAL {request_of(w.agent_turn_id)} i
LEFT JOIN state.turn_nodes n ON n.agent_turn_id = w.agent_turn_id
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = w.agent_turn_id
LEFT JOIN LATERAL (
    SELECT x.status, x.started_at, x.active_agent_turn_id FROM state.agent_state_head x
    WHERE x.agent_id = i.agent_id AND x.project_id = :project_id {by_key}) h ON h.active_agent_turn_id = i.agent_turn_id
LEFT JOIN state.pmo_batch_tasks t ON t.current_agent_turn_id = w.agent_turn_id
LEFT JOIN state.pmo_batches b ON b.batch_id = t.batch_id
CROSS JOIN LATERAL {use_of_turn(w.agent_turn_id)} u
ORDER BY w.path;
