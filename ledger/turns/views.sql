-- Reads for operators and callers; no transition uses them.

-- name: describe_turn :opt
-- One turn of a project: its request, its status, and its outcome.
SELECT i.agent_turn_id, i.project_id, i.agent_id, i.channel_id, i.inbox_id, i.correlation_id,
       i.status AS inbox_status, i.created_at,
       i.turn_epoch, i.last_error, i.payload ->> 'context_box_id' AS context_box_id,
       coalesce(o.output_box_id::text, h.output_box_id::text, {wanted_box(i)}::text) AS output_box_id,
       i.payload ->> 'conversation_id' AS conversation_id, i.payload ->> 'end_user' AS end_user,
       split_part(i.context_headers ->> 'traceparent', '-', 2) AS trace_id,
       {turn_status} AS status,
       CASE WHEN o.agent_turn_id IS NULL AND i.status = 'queued' THEN (
           SELECT CASE WHEN q.paused_at_epoch IS NOT NULL THEN 'agent_paused' WHEN q.status <> 'idle' THEN 'agent_busy'
                       WHEN EXISTS (SELECT FROM state.agent_state_head b WHERE b.output_box_id = {wanted_box(i)})
                       THEN 'output_box_busy' END
           FROM state.agent_state_head q WHERE q.agent_id = i.agent_id
             AND q.project_id = i.project_id) END AS queued_because,
       CASE WHEN o.agent_turn_id IS NULL AND (i.status = 'queued' OR h.status = 'dispatched') THEN (
           SELECT a.worker_target FROM resource.project_agents a
           WHERE a.agent_id = i.agent_id AND a.project_id = i.project_id AND NOT EXISTS (
               SELECT FROM state.workers w WHERE w.worker_target = a.worker_target
                 AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))) END AS unserved_target,
       h.resume_deadline, h.waiting_tool_count, coalesce(o.started_at, h.started_at) AS started_at,
       o.ended_at, o.announced_at, o.deliverable_card_id, o.tool_result_card_id, o.error_code, o.error, o.stats,
       (SELECT count(*) FROM state.agent_steps s
        WHERE s.agent_turn_id = i.agent_turn_id AND s.project_id = i.project_id) AS steps,
       (SELECT jsonb_agg(to_jsonb(x) ORDER BY x.seq) FROM (
            SELECT s.steer_id, s.priority, s.status, s.step_id, s.steered_by, s.created_at, s.settled_at, s.seq
            FROM state.steers s
            WHERE s.agent_turn_id = i.agent_turn_id AND s.project_id = i.project_id) x) AS steers,
       i.payload -> 'rerun' ->> 'of' AS rerun_of, state.as_count(i.payload -> 'rerun' ->> 'from_step') AS from_step,
       i.payload -> 'budget' AS budget,
       ARRAY(SELECT r.agent_turn_id FROM state.agent_inbox r
             WHERE r.payload -> 'rerun' ->> 'of' = i.agent_turn_id AND r.payload ? 'rerun'
               AND r.project_id = i.project_id
             ORDER BY r.created_at LIMIT 100) AS reruns
FROM state.agent_inbox i
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id
LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
    AND h.active_agent_turn_id = i.agent_turn_id
WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id AND i.message_type IN {turn_types};

-- name: list_turns :many
-- The newest turns of a project, or of one of its agents, with the beginning of the instruction.
WITH page AS MATERIALIZED (
    SELECT i.agent_turn_id, i.project_id, i.agent_id, i.created_at, i.correlation_id, i.turn_epoch, i.payload,
           {turn_status} AS status,
           o.started_at, o.ended_at, o.error_code, o.stats ->> 'truncated' AS truncated
    FROM state.agent_inbox i
    LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id
    LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
        AND h.active_agent_turn_id = i.agent_turn_id
    WHERE i.project_id COLLATE "C" = :project_id AND i.message_type IN {turn_types}
      AND (:agent_id::text IS NULL OR i.agent_id = :agent_id)
    ORDER BY i.created_at DESC LIMIT :row_limit::int
)
SELECT g.agent_turn_id, g.agent_id, g.created_at, g.correlation_id, g.turn_epoch, g.status,
       g.started_at, g.ended_at, g.error_code, g.truncated,
       (SELECT count(*) FROM state.turn_waiting_tools w
        WHERE w.agent_turn_id = g.agent_turn_id AND w.project_id = g.project_id
          AND w.wait_status = 'expired') AS calls_timed_out,
       {asked_of(g)} AS asked
FROM page g ORDER BY g.created_at DESC;

-- name: list_conversations :many
-- The conversations of a project, or of one of its agents, the last used first.
SELECT c.conversation_id, c.agent_id, c.channel_id, c.output_box_id::text AS output_box_id,
       c.turn_count, c.last_turn_id, c.created_at, c.updated_at
FROM state.conversations c
WHERE c.project_id COLLATE "C" = :project_id AND c.agent_id <> ''
  AND (:agent_id::text IS NULL OR c.agent_id = :agent_id)
  AND (:channel_id::text IS NULL OR c.channel_id = :channel_id)
ORDER BY c.updated_at DESC LIMIT :row_limit::int;

-- name: find_conversations :many
-- The conversations of this name, of all agents and channels of a project.
SELECT c.conversation_id, c.agent_id, c.channel_id, c.output_box_id::text AS output_box_id,
       c.turn_count, c.last_turn_id, c.created_at, c.updated_at
FROM state.conversations c
WHERE c.project_id COLLATE "C" = :project_id AND c.conversation_id COLLATE "C" = :conversation_id
  AND c.agent_id <> '' AND (:agent_id::text IS NULL OR c.agent_id = :agent_id)
  AND (:channel_id::text IS NULL OR c.channel_id = :channel_id)
ORDER BY c.updated_at DESC LIMIT :row_limit::int;

-- name: list_conversation_turns :many
-- The last turns of a conversation, in its order: all that was asked, also before a compaction.
SELECT t.agent_turn_id, t.created_at, t.status, t.ended_at, t.error_code, t.asked, t.deliverable FROM (
    SELECT i.agent_turn_id, i.created_at, i.conversation_seq, {turn_status} AS status, o.ended_at, o.error_code,
           (SELECT c.content ->> 'text' FROM public.box_cards p JOIN public.cards c ON c.card_id = p.card_id
            WHERE p.box_id = state.as_uuid(i.payload ->> 'context_box_id') AND c.tenant_id = i.project_id
              AND c.metadata ->> 'type' = 'task.instruction'
            ORDER BY p.position DESC LIMIT 1) AS asked,
           d.content AS deliverable
    FROM state.agent_inbox i
    LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id
    LEFT JOIN public.cards d ON d.card_id = o.deliverable_card_id AND d.tenant_id = i.project_id
    LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
        AND h.active_agent_turn_id = i.agent_turn_id
    WHERE {of_conversation}
    ORDER BY i.conversation_seq DESC LIMIT :row_limit::int) t
ORDER BY t.conversation_seq;

-- name: find_turns :many
-- The turns of a project whose ids begin with a text, so that people need not type whole ids.
SELECT i.agent_turn_id FROM state.agent_inbox i
WHERE i.project_id COLLATE "C" = :project_id AND i.message_type IN {turn_types}
  AND starts_with(i.agent_turn_id, :beginning)
ORDER BY i.created_at DESC LIMIT :row_limit::int;

-- name: list_calls :many
-- The calls that a turn has sent, in order, with what was recorded under them.
SELECT w.tool_call_id, w.tool_name, w.step_id, w.wait_status, w.created_at, w.received_at, w.applied_at,
       {recorded_under(w)} AS recorded
FROM state.turn_waiting_tools w
WHERE w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id ORDER BY w.created_at, w.tool_call_id;

-- name: list_steps :many
-- The steps of a turn, in order.
SELECT s.step_id, s.status, s.started_at, s.ended_at, s.tool_call_ids, s.error, s.metadata FROM state.agent_steps s
WHERE s.agent_turn_id = :agent_turn_id AND s.project_id = :project_id ORDER BY s.started_at, s.step_id;

-- name: list_inbox :many
-- The newest inbox rows of a project, or of one agent, or in one status.
SELECT i.inbox_id, i.agent_id, i.message_type, i.status, i.correlation_id, i.agent_turn_id, i.turn_epoch, i.retry_count,
       CASE WHEN i.next_retry_at < 'infinity' THEN i.next_retry_at END AS next_retry_at, i.defer_reason,
       i.last_error, i.created_at, i.archived_at
FROM state.agent_inbox i
WHERE i.project_id COLLATE "C" = :project_id AND (:agent_id::text IS NULL OR i.agent_id = :agent_id)
  AND (:status::text IS NULL OR i.status = :status)
ORDER BY i.created_at DESC LIMIT :row_limit::int;

-- name: locate_turn :opt
-- The gate and boxes of an active turn, for callers that act on it from outside.
SELECT t.* FROM state.agent_inbox i
JOIN state.turns_in_hand t ON t.agent_id = i.agent_id AND t.project_id = i.project_id
    AND t.agent_turn_id = i.agent_turn_id
WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id AND i.message_type IN {turn_types};
