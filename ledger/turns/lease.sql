-- Leasing agents to turns, and claiming inbox rows (protocol §3, §6).

-- name: dispatch_next :many
-- Leases each of these agents that is idle, and not paused, to its oldest turn whose output box is free. A turn of a
-- conversation gets the box that the conversation's pointer names now, on the head and, by a trigger, in its row.
WITH
head AS MATERIALIZED (
    SELECT h.project_id, h.agent_id FROM unnest(:project_ids::text[], :agent_ids::text[]) a (project_id, agent_id)
    JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = a.project_id
    WHERE h.status = 'idle' AND h.paused_at_epoch IS NULL ORDER BY h.project_id, h.agent_id FOR NO KEY UPDATE OF h
),
next AS MATERIALIZED (
    SELECT q.inbox_id, q.project_id, q.agent_id, q.agent_turn_id, q.channel_id, q.created_at,
           q.profile_box_id, q.context_box_id,
           {box_at_lease(q)} AS output_box_id, q.trace_id, q.parent_step_id, q.recursion_depth
    FROM head CROSS JOIN LATERAL (
        SELECT q.* FROM state.queued_turns q
        WHERE q.agent_id = head.agent_id AND q.project_id = head.project_id
          AND NOT EXISTS (SELECT FROM state.agent_state_head busy WHERE busy.output_box_id = q.output_box_id)
        ORDER BY q.created_at LIMIT 1 FOR NO KEY UPDATE OF q) q
),
picked AS (  -- one agent per box: two would break the unique index on each try
    SELECT DISTINCT ON (next.output_box_id) next.* FROM next ORDER BY next.output_box_id, next.created_at
),
leased AS (
    UPDATE state.agent_state_head h SET
        status = 'dispatched', turn_epoch = {next_epoch(h.turn_epoch)}, {turn_on_head}
    FROM picked n WHERE h.agent_id = n.agent_id AND h.project_id = n.project_id AND h.status = 'idle'
    RETURNING h.project_id, h.agent_id, h.active_inbox_id, h.active_agent_turn_id, h.active_channel_id,
              h.turn_epoch, h.output_box_id, h.updated_at
),
moved AS (
    UPDATE state.agent_inbox i SET status = 'pending', next_retry_at = now(), turn_epoch = l.turn_epoch
    FROM leased l WHERE i.inbox_id = l.active_inbox_id
    RETURNING i.inbox_id, i.context_headers
)
SELECT l.project_id, l.agent_id, l.active_inbox_id AS inbox_id, l.active_agent_turn_id AS agent_turn_id,
       l.active_channel_id AS channel_id, l.turn_epoch, a.worker_target, m.context_headers,
       l.output_box_id::text AS output_box_id, l.updated_at AS leased_at
FROM leased l JOIN moved m ON m.inbox_id = l.active_inbox_id
JOIN resource.project_agents a ON a.agent_id = l.agent_id AND a.project_id = l.project_id;

-- name: claim_inbox :many
-- Claims due rows of these agents, if their worker target is served here: pending | deferred -> processing, or settles
-- them at once if no workflow is needed. verdict: start | signal | consumed (a call already settled) | skipped (another
-- or an old turn) | deferred (the turn runs while its call still waits) | error (protocol violation; a turn or a stop
-- whose turn nobody enqueued is one). A claim that is lost is made again: the workflow that it started or signalled is
-- found by its id.
WITH
due AS MATERIALIZED (
    SELECT i.inbox_id, a.worker_target FROM unnest(:project_ids::text[], :agent_ids::text[]) w (project_id, agent_id)
    JOIN resource.project_agents a ON a.agent_id = w.agent_id AND a.project_id = w.project_id
    CROSS JOIN LATERAL (
        SELECT i.inbox_id FROM state.agent_inbox i
        WHERE i.agent_id = a.agent_id AND i.project_id = a.project_id AND i.archived_at IS NULL
          AND i.next_retry_at <= now() AND i.status IN ('pending', 'deferred')
        ORDER BY i.next_retry_at, i.created_at LIMIT :row_limit::int FOR NO KEY UPDATE SKIP LOCKED) i
    WHERE a.worker_target = ANY (:worker_targets::text[]) AND {commits_lazily}
),
judged AS MATERIALIZED (
    SELECT i.inbox_id, due.worker_target, h.profile_box_id, h.context_box_id, h.output_box_id,
           h.trace_id, h.active_inbox_id,
           h.status AS head_status, coalesce(CASE  -- what needs no workflow
               WHEN i.agent_turn_id IS NULL OR i.turn_epoch < 1 OR i.correlation_id IS NULL
                 OR i.message_type NOT IN {message_types} OR i.message_type IN {record_types} THEN 'error'
               WHEN i.message_type IN {report_types} AND w.agent_id IS DISTINCT FROM i.agent_id THEN 'error'
               WHEN w.wait_status IN ('applied', 'expired', 'dropped') THEN 'consumed'
               WHEN h.active_agent_turn_id = i.agent_turn_id AND h.turn_epoch = i.turn_epoch THEN NULL
               WHEN EXISTS (SELECT FROM state.agent_inbox t
                            WHERE t.agent_turn_id = i.agent_turn_id AND t.project_id = i.project_id
                            AND t.message_type IN {turn_types} AND t.agent_id <> i.agent_id) THEN 'error'
               WHEN i.message_type IN {turn_types} AND h.active_agent_turn_id IS DISTINCT FROM i.agent_turn_id
                    AND NOT EXISTS (
                    SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = i.agent_turn_id) THEN 'error'
               WHEN i.message_type = 'stop' AND NOT EXISTS (
                    SELECT FROM state.agent_inbox t WHERE t.agent_turn_id = i.agent_turn_id
                      AND t.project_id = i.project_id
                      AND t.message_type IN {turn_types}) THEN 'error'
               ELSE 'skipped'
           END, CASE
               WHEN i.message_type IN {turn_types} THEN 'start'
               WHEN i.message_type IN {report_types} AND h.status <> 'suspended' THEN 'deferred'
               ELSE 'signal'
           END) AS verdict
    FROM due JOIN state.agent_inbox i ON i.inbox_id = due.inbox_id
    LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
    LEFT JOIN LATERAL (
        SELECT w.agent_id, w.wait_status FROM state.turn_waiting_tools w
        WHERE i.message_type IN {report_types} AND w.tool_call_id = i.correlation_id
          AND w.project_id = i.project_id) w ON true
),
marked AS (
    UPDATE state.agent_inbox i SET
        status = CASE WHEN j.verdict IN ('start', 'signal') THEN 'processing' ELSE j.verdict END, processed_at = now(),
        next_retry_at = CASE j.verdict WHEN 'deferred' THEN now() + interval '1 s' ELSE i.next_retry_at END,
        defer_reason = CASE j.verdict WHEN 'deferred' THEN 'turn_running' ELSE i.defer_reason END,
        archived_at = CASE WHEN j.verdict IN ('consumed', 'skipped', 'error') THEN now() END,
        last_error = CASE j.verdict WHEN 'consumed' THEN 'already_settled' WHEN 'skipped' THEN 'stale_turn'
                                    WHEN 'error' THEN 'protocol_violation' ELSE i.last_error END
    FROM judged j WHERE i.inbox_id = j.inbox_id
    RETURNING i.*, j.verdict, j.worker_target, j.profile_box_id, j.context_box_id, j.output_box_id,
              j.trace_id, j.active_inbox_id, j.head_status
)
SELECT m.verdict, m.inbox_id, m.project_id, m.agent_id, m.channel_id, m.message_type, m.correlation_id, m.agent_turn_id,
       m.turn_epoch, m.worker_target, m.profile_box_id::text AS profile_box_id,
       m.context_box_id::text AS context_box_id,
       m.output_box_id::text AS output_box_id, m.trace_id, m.active_inbox_id, m.last_error,
       m.context_headers, m.head_status, n.root_turn_id, n.parent_turn_id
FROM marked m
LEFT JOIN LATERAL (  -- one look by key for each child that starts
    SELECT x.root_turn_id, x.parent_turn_id FROM state.turn_nodes x
    WHERE m.verdict = 'start' AND m.context_headers ? 'CG-Parent-Turn-Id'
      AND x.agent_turn_id = m.agent_turn_id {by_key}) n ON true
ORDER BY m.next_retry_at, m.created_at;

-- name: release_claims :many
-- Gives back rows whose workflow could not be reached: deferred for this reason, due after delay_seconds or, as the
-- tries fail, more.
UPDATE state.agent_inbox i SET {given_back(:reason::text, :delay_seconds::float8)}
WHERE i.inbox_id = ANY (:inbox_ids::text[]) AND i.status = 'processing'
RETURNING i.inbox_id;
