-- The safety net's rules (protocol §8): each finds its rows by an index on live rows, only for served worker targets.

-- name: release_stale_claims :many
-- Rule 'claims': rows that have been processing for too long are given back, and are due at once.
WITH stale AS MATERIALIZED (
    SELECT i.inbox_id FROM state.agent_inbox i
    JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
    WHERE i.archived_at IS NULL AND i.inbox_id >= '' AND i.next_retry_at <= now() AND i.status = 'processing'
      AND i.processed_at < now() - make_interval(secs => :older_seconds::float8)
      AND a.worker_target = ANY (:worker_targets::text[])
    ORDER BY i.next_retry_at LIMIT :row_limit::int FOR NO KEY UPDATE OF i SKIP LOCKED
)
UPDATE state.agent_inbox i SET {given_back('claim_lost', 0)}
FROM stale WHERE i.inbox_id = stale.inbox_id
RETURNING i.project_id, i.agent_id;

-- name: list_due_agents :many
-- Rule 'doorbell': agents with pending rows that nobody took for a while, or deferred rows that are due, and how long
-- each row has been due. Projects alternate: the oldest row of each, then the next of each. Skips from project to
-- project in the index.
WITH RECURSIVE live AS (
    (SELECT i.project_id FROM state.agent_inbox i WHERE i.archived_at IS NULL AND i.inbox_id >= ''
     ORDER BY i.project_id COLLATE "C" LIMIT 1)
    UNION ALL
    SELECT n.project_id FROM live CROSS JOIN LATERAL (
        SELECT i.project_id FROM state.agent_inbox i
        WHERE i.archived_at IS NULL AND i.inbox_id >= '' AND i.project_id COLLATE "C" > live.project_id
        ORDER BY i.project_id COLLATE "C" LIMIT 1) n
),
share AS MATERIALIZED (  -- twice an equal share, since some projects have fewer rows
    SELECT greatest(1, 2 * :row_limit::int / nullif(count(*), 0)) AS rows FROM live
)
SELECT due.project_id, due.agent_id, due.status = 'deferred' AS is_deferred,
       extract(epoch FROM now() - due.next_retry_at)::float8 AS due_seconds
FROM share CROSS JOIN live CROSS JOIN LATERAL (
    SELECT i.project_id, i.agent_id, i.status, i.next_retry_at,
           row_number() OVER (ORDER BY i.next_retry_at) AS place FROM (
        SELECT i.project_id, i.agent_id, i.status, i.next_retry_at FROM state.agent_inbox i
        JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
        WHERE i.project_id COLLATE "C" = live.project_id AND i.archived_at IS NULL
          AND i.inbox_id >= '' AND i.status IN ('pending', 'deferred')
          AND i.next_retry_at < now() - make_interval(
              secs => CASE i.status WHEN 'pending' THEN :older_seconds::float8 ELSE 0 END)
          AND i.next_retry_at < now() AND a.worker_target = ANY (:worker_targets::text[])
        ORDER BY i.next_retry_at LIMIT share.rows) i
) due
ORDER BY due.place, due.next_retry_at LIMIT :row_limit::int;

-- name: retry_dispatched :many
-- Rule 'dispatched, retry': a turn was leased and claimed, but no worker has begun it: its row is given back, and is
-- due. Projects have equal shares of the rows, so that one project's waiting rows do not delay the repair of another's.
WITH RECURSIVE live AS (
    (SELECT h.project_id FROM state.agent_state_head h WHERE h.output_box_id IS NOT NULL AND h.agent_id >= ''
     ORDER BY h.project_id COLLATE "C" LIMIT 1)
    UNION ALL
    SELECT n.project_id FROM live CROSS JOIN LATERAL (
        SELECT h.project_id FROM state.agent_state_head h
        WHERE h.output_box_id IS NOT NULL AND h.agent_id >= '' AND h.project_id COLLATE "C" > live.project_id
        ORDER BY h.project_id COLLATE "C" LIMIT 1) n
),
share AS MATERIALIZED (SELECT greatest(1, :row_limit::int / nullif(count(*), 0)) AS rows FROM live),
late AS MATERIALIZED (
    SELECT l.inbox_id FROM share CROSS JOIN live CROSS JOIN LATERAL (
        SELECT i.inbox_id FROM state.agent_state_head h
        CROSS JOIN LATERAL (  -- LIMIT, so that each row is looked up by its key
            SELECT a.worker_target FROM resource.project_agents a
            WHERE a.agent_id = h.agent_id AND a.project_id = h.project_id LIMIT 1) a
        CROSS JOIN LATERAL (
            SELECT i.inbox_id FROM state.agent_inbox i
            WHERE i.inbox_id = h.active_inbox_id AND i.status = 'processing'
              AND greatest(h.updated_at, i.processed_at) < now() - make_interval(secs => :older_seconds::float8)
            LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) i
        WHERE h.project_id COLLATE "C" = live.project_id AND h.output_box_id IS NOT NULL
          AND h.agent_id >= '' AND h.status = 'dispatched'
          AND a.worker_target = ANY (:worker_targets::text[])
        LIMIT share.rows) l
)
UPDATE state.agent_inbox i SET {given_back('not_begun', 0)}
WHERE i.inbox_id = ANY (ARRAY(SELECT late.inbox_id FROM late))  -- an array, so that rows are looked up by key
RETURNING i.project_id, i.agent_id;

-- name: list_stranded :many
-- Rule 'stranded': idle agents, not paused, that have a queued turn whose output box is free. Skips from agent to agent
-- in the index.
WITH RECURSIVE live AS (
    (SELECT i.agent_id, i.project_id FROM state.agent_inbox i WHERE i.archived_at IS NULL
     ORDER BY i.agent_id, i.project_id LIMIT 1)
    UNION ALL
    SELECT n.agent_id, n.project_id FROM live CROSS JOIN LATERAL (
        SELECT i.agent_id, i.project_id FROM state.agent_inbox i
        WHERE i.archived_at IS NULL AND (i.agent_id, i.project_id) > (live.agent_id, live.project_id)
        ORDER BY i.agent_id, i.project_id LIMIT 1) n
)
SELECT live.project_id, live.agent_id FROM live
JOIN resource.project_agents a ON a.agent_id = live.agent_id AND a.project_id = live.project_id
JOIN state.agent_state_head h ON h.agent_id = live.agent_id AND h.project_id = live.project_id
WHERE h.status = 'idle' AND h.paused_at_epoch IS NULL AND a.worker_target = ANY (:worker_targets::text[]) AND EXISTS (
    SELECT FROM state.queued_turns q WHERE q.agent_id = live.agent_id AND q.project_id = live.project_id
      AND NOT EXISTS (SELECT FROM state.agent_state_head busy WHERE busy.output_box_id = q.output_box_id))
LIMIT :row_limit::int;

-- name: list_unannounced :many
-- Rule 'unannounced': outcomes that are not marked as announced, oldest first.
SELECT o.agent_turn_id, o.project_id, o.agent_id, o.channel_id, o.turn_epoch, o.status,
       o.deliverable_card_id, o.tool_result_card_id,
       o.output_box_id::text AS output_box_id, o.error_code, o.error, o.stats, o.ended_at,
       i.context_headers, i.payload -> 'ui_action' AS ui_action, false AS in_tree,
       ARRAY(SELECT s.steer_id FROM state.steers s WHERE s.agent_turn_id = o.agent_turn_id AND s.status = 'skipped'
             ORDER BY s.seq) AS skipped_steers
FROM state.turn_outcomes o
LEFT JOIN state.agent_inbox i ON i.inbox_id = o.inbox_id
LEFT JOIN resource.project_agents a ON a.agent_id = o.agent_id AND a.project_id = o.project_id
WHERE o.announced_at IS NULL
  AND o.ended_at NOT BETWEEN now() - make_interval(secs => :older_seconds::float8) AND now() + interval '1 minute'
  AND (a.worker_target IS NULL OR a.worker_target = ANY (:worker_targets::text[]))
ORDER BY o.ended_at LIMIT :row_limit::int;

-- name: end_orphans :many
-- Rule 'orphans': live rows for an agent that no roster has, which nothing would ever claim: they end as error, with a
-- rejection that names the writer. Skips from agent to agent in the index; no target is theirs, so any bridge ends
-- them.
WITH RECURSIVE live AS (
    (SELECT i.agent_id, i.project_id FROM state.agent_inbox i WHERE i.archived_at IS NULL
     ORDER BY i.agent_id, i.project_id LIMIT 1)
    UNION ALL
    SELECT n.agent_id, n.project_id FROM live CROSS JOIN LATERAL (
        SELECT i.agent_id, i.project_id FROM state.agent_inbox i
        WHERE i.archived_at IS NULL AND (i.agent_id, i.project_id) > (live.agent_id, live.project_id)
        ORDER BY i.agent_id, i.project_id LIMIT 1) n
),
orphan AS MATERIALIZED (
    SELECT i.inbox_id FROM live JOIN state.agent_inbox i ON i.agent_id = live.agent_id
        AND i.project_id = live.project_id
    WHERE i.archived_at IS NULL AND i.created_at < now() - make_interval(secs => :older_seconds::float8)
      AND NOT EXISTS (
        SELECT FROM resource.project_agents a WHERE a.agent_id = live.agent_id AND a.project_id = live.project_id)
    LIMIT :row_limit::int FOR NO KEY UPDATE OF i SKIP LOCKED
),
ended AS (
    UPDATE state.agent_inbox i SET status = 'error', last_error = 'unknown_agent',
                                   archived_at = now(), next_retry_at = now()
    FROM orphan WHERE i.inbox_id = orphan.inbox_id
    RETURNING i.project_id, i.agent_id, i.inbox_id, i.message_type,
              left(coalesce(i.context_headers ->> 'CG-Sender', 'unknown'), 128) AS sender
),
refused AS (
    INSERT INTO state.rejections (project_id, source, error_code, error, ids)
    SELECT e.project_id, 'sql:' || e.sender, 'unknown_agent', 'inbox: a row for an agent that no roster has',
           jsonb_build_object('inbox_id', e.inbox_id, 'agent_id', left(e.agent_id, 128)) FROM ended e
)
SELECT e.project_id, e.agent_id, e.inbox_id, e.message_type, e.sender FROM ended e;

-- name: reject :exec
-- Records a refused message: its sender and the reason, never its body.
INSERT INTO state.rejections (project_id, source, error_code, error, ids)
VALUES (:project_id, :source, :error_code, :error, :ids::jsonb);

-- name: touch_worker :exec
-- Signs a worker on for these targets, and for these listeners of the pump's target. After a gap of more than
-- silent_seconds, or with :restarted, started_at becomes now. Removes workers and bridges that have been gone for long.
WITH gone AS (
    DELETE FROM state.workers w WHERE w.last_seen_at < now() - interval '1 day' AND w.instance <> :instance
)
INSERT INTO state.workers AS w (worker_target, instance, last_seen_at, listeners, payloads, protocol_level)
SELECT DISTINCT t.worker_target, :instance, now(), CASE WHEN t.worker_target = :pump_target THEN :listeners::text[] END,
       CASE WHEN t.worker_target = :pump_target THEN :payloads::text[] END, :protocol_level::int
FROM unnest(:worker_targets::text[]) t (worker_target)
ON CONFLICT (worker_target, instance) DO UPDATE SET last_seen_at = EXCLUDED.last_seen_at, left_at = NULL,
    listeners = EXCLUDED.listeners, payloads = EXCLUDED.payloads, protocol_level = EXCLUDED.protocol_level,
    started_at = CASE WHEN :restarted::bool OR w.last_seen_at < now() - make_interval(secs => :silent_seconds::float8)
                      THEN now() ELSE least(w.started_at, now()) END;

-- name: touch_bridge :exec
-- Signs a bridge on, in a row of the target _bridge.
INSERT INTO state.workers AS w (worker_target, instance, last_seen_at, protocol_level)
VALUES ('_bridge', :instance, now(), :protocol_level::int)
ON CONFLICT (worker_target, instance) DO UPDATE SET last_seen_at = EXCLUDED.last_seen_at, left_at = NULL,
    protocol_level = EXCLUDED.protocol_level;

-- name: sign_off :exec
-- Says that a worker, or a bridge, ends as it should.
UPDATE state.workers w SET left_at = now()
WHERE w.instance = :instance AND (w.worker_target = '_bridge') = :is_bridge::boolean;

-- name: list_overdue :many
-- Rule 'suspended': turns whose resume deadline has passed, with the gate of each. Null is never past.
SELECT t.* FROM state.turns_in_hand t
WHERE t.status = 'suspended' AND t.worker_target = ANY (:worker_targets::text[])
  AND t.resume_deadline < now() - make_interval(secs => :older_seconds::float8)
LIMIT :row_limit::int;

-- name: retry_resumes :many
-- Rule 'resume': a report of a suspended turn was claimed, but the turn has not resumed although a worker is there: its
-- row is given back, and is due. Without a worker each signal would only lengthen the history of the workflow.
WITH late AS MATERIALIZED (
    SELECT i.inbox_id FROM state.agent_inbox i
    JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
        AND h.active_agent_turn_id = i.agent_turn_id
    JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
    WHERE i.archived_at IS NULL AND i.inbox_id >= '' AND i.next_retry_at <= now() AND i.status = 'processing'
      AND i.message_type IN {report_types} AND h.status = 'suspended'
      AND i.processed_at < now() - make_interval(secs => :older_seconds::float8)
      AND a.worker_target = ANY (:worker_targets::text[])
      AND EXISTS (SELECT FROM state.workers w WHERE w.worker_target = a.worker_target
                  AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))
    ORDER BY i.next_retry_at LIMIT :row_limit::int FOR NO KEY UPDATE OF i SKIP LOCKED
)
UPDATE state.agent_inbox i SET {given_back('not_resumed', 0)}
FROM late WHERE i.inbox_id = late.inbox_id
RETURNING i.project_id, i.agent_id;

-- name: list_stops_overdue :many
-- Rule 'stop': turns that were asked to stop and are not over after the grace. A row of before the clock was set back
-- became due again.
SELECT t.* FROM state.agent_inbox i
JOIN state.turns_in_hand t ON t.agent_id = i.agent_id AND t.project_id = i.project_id
    AND t.agent_turn_id = i.agent_turn_id
WHERE i.archived_at IS NULL AND i.inbox_id >= '' AND i.next_retry_at <= now() AND i.message_type = 'stop'
  AND least(i.created_at, i.next_retry_at) < now() - make_interval(secs => :older_seconds::float8)
  AND t.worker_target = ANY (:worker_targets::text[])
LIMIT :row_limit::int;

-- name: retry_commands :many
-- Rule 'command': calls without a report for a while, whose command is published again, with the card that counts; but
-- for those that began and must not be repeated, and those whose tools ask people. It sets the waiting row's
-- updated_at, so that one bridge at a time does it and the next repeat comes after the same interval. The collation
-- keeps the plan from looking up turns by the primary key, of which it would read the whole project.
WITH silent AS MATERIALIZED (
    SELECT w.tool_call_id, w.project_id, w.agent_turn_id, h.active_channel_id, h.active_inbox_id
    FROM state.agent_state_head h
    JOIN resource.project_agents a ON a.agent_id = h.agent_id AND a.project_id = h.project_id
    JOIN state.turn_waiting_tools w ON w.agent_turn_id = h.active_agent_turn_id
        AND w.project_id COLLATE "C" = h.project_id
    WHERE h.output_box_id IS NOT NULL AND h.status = 'suspended' AND w.wait_status = 'waiting'
      AND w.held_by IS NULL AND w.begun_by IS NULL
      AND w.left_seconds IS NULL AND w.updated_at < now() - make_interval(secs => :older_seconds::float8)
      AND a.worker_target = ANY (:worker_targets::text[])
    LIMIT :row_limit::int FOR NO KEY UPDATE OF w SKIP LOCKED
),
open AS MATERIALIZED (  -- of turns in a tree, those that no mark stops; a node that a cascade holds is passed
    SELECT n.agent_turn_id FROM (SELECT DISTINCT s.agent_turn_id FROM silent s) t
    CROSS JOIN LATERAL (
        SELECT x.agent_turn_id FROM state.turn_nodes x WHERE x.agent_turn_id = t.agent_turn_id AND x.stopping_at IS NULL
        FOR SHARE SKIP LOCKED) n
)
UPDATE state.turn_waiting_tools w SET updated_at = now()
FROM silent WHERE w.tool_call_id = silent.tool_call_id AND w.project_id = silent.project_id
  AND (NOT EXISTS (SELECT FROM state.turn_nodes n WHERE n.agent_turn_id = silent.agent_turn_id {by_key})
       OR silent.agent_turn_id IN (SELECT open.agent_turn_id FROM open))
RETURNING w.project_id, w.agent_id, w.agent_turn_id, w.turn_epoch, w.step_id, w.tool_call_id,
          coalesce(silent.active_channel_id, 'public') AS channel_id,
          greatest(1, floor(extract(epoch FROM now() - w.created_at) / greatest(:older_seconds::float8,
                                                                                0.001)))::int AS repeat,
          (SELECT c || jsonb_build_object('tool_call_card_id', coalesce(w.call_card_id, c ->> 'tool_call_card_id'))
           FROM state.agent_steps s CROSS JOIN jsonb_array_elements(s.metadata -> 'commands') c
           WHERE s.step_id = w.step_id AND s.project_id = w.project_id
             AND c ->> 'tool_call_id' = w.tool_call_id) AS command,
          (SELECT i.context_headers FROM state.agent_inbox i
           WHERE i.inbox_id = silent.active_inbox_id) AS context_headers;

-- name: retry_forks :many
-- Rule 'batch': calls whose batch runs and has tasks that were not enqueued for a while: their command is published
-- again, and whoever takes it goes on with them. It sets the waiting row's updated_at, as 'command' does.
WITH silent AS MATERIALIZED (
    SELECT w.tool_call_id, w.project_id FROM state.pmo_batches b
    JOIN state.turn_waiting_tools w ON w.tool_call_id = b.parent_tool_call_id AND w.project_id = b.project_id
    JOIN resource.project_agents a ON a.agent_id = w.agent_id AND a.project_id = w.project_id
    WHERE b.status = 'running' AND b.deadline_at > now() AND w.wait_status = 'waiting' AND w.held_by = b.batch_id
      AND a.worker_target = ANY (:worker_targets::text[])
      AND w.updated_at < now() - make_interval(secs => :older_seconds::float8)
      AND EXISTS (SELECT FROM state.pmo_batch_tasks t WHERE t.batch_id = b.batch_id AND t.status = 'pending' {by_key})
      AND NOT EXISTS (SELECT FROM state.turn_nodes n
                      WHERE n.agent_turn_id = b.parent_agent_turn_id AND n.stopping_at IS NOT NULL {by_key})
    LIMIT :row_limit::int FOR NO KEY UPDATE OF w SKIP LOCKED
)
UPDATE state.turn_waiting_tools w SET updated_at = now()
FROM silent WHERE w.tool_call_id = silent.tool_call_id AND w.project_id = silent.project_id
RETURNING w.project_id, w.agent_id, w.agent_turn_id, w.turn_epoch, w.step_id, w.tool_call_id,
          (SELECT coalesce(h.active_channel_id, 'public') FROM state.agent_state_head h
           WHERE h.agent_id = w.agent_id AND h.project_id = w.project_id) AS channel_id,
          greatest(1, floor(extract(epoch FROM now() - w.created_at) / greatest(:older_seconds::float8,
                                                                                0.001)))::int AS repeat,
          (SELECT c FROM state.agent_steps s CROSS JOIN jsonb_array_elements(s.metadata -> 'commands') c
           WHERE s.step_id = w.step_id AND s.project_id = w.project_id
             AND c ->> 'tool_call_id' = w.tool_call_id) AS command,
          (SELECT i.context_headers FROM state.agent_inbox i
           WHERE i.agent_turn_id = w.agent_turn_id AND i.message_type IN {turn_types} LIMIT 1) AS context_headers;

-- name: list_undecided :many
-- Rule 'batch': batches that run although their deadline has passed, or although their call waits no more.
-- A program of v1r4 may have made the call in the name of an agent that no worker of ours serves: all look after it.
SELECT b.batch_id FROM state.pmo_batches b
LEFT JOIN resource.project_agents a ON a.agent_id = b.parent_agent_id AND a.project_id = b.project_id
WHERE b.status = 'running' AND (a.worker_target = ANY (:worker_targets::text[]) OR b.peer_card_id IS NOT NULL)
  AND (b.deadline_at < now() - make_interval(secs => :older_seconds::float8) OR EXISTS (
      SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = b.parent_agent_turn_id {by_key})
       OR b.call_key IS NOT NULL AND EXISTS (
      SELECT FROM state.turn_waiting_tools w
      WHERE w.tool_call_id = b.parent_tool_call_id AND w.project_id = b.project_id
        AND w.wait_status <> 'waiting' {by_key}))
ORDER BY b.deadline_at LIMIT :row_limit::int;

-- name: list_marked_queued :many
-- Rule 'marked': turns that are marked and wait in a queue; those in hand have a row that asks them to stop, or a
-- closed gate. The stop that names a turn ends it itself, and says who asked for it: it has `older_seconds` for that.
SELECT i.project_id, i.agent_id, i.agent_turn_id, i.inbox_id, i.channel_id, a.worker_target, i.context_headers
FROM state.turn_nodes n
JOIN state.agent_inbox i ON i.agent_turn_id = n.agent_turn_id AND i.message_type IN {turn_types}
JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
WHERE n.stopping_at IS NOT NULL AND NOT n.ended AND i.status = 'queued'
  AND a.worker_target = ANY (:worker_targets::text[])
  AND n.stopping_at NOT BETWEEN now() - make_interval(
      secs => CASE WHEN n.stopped_by = n.agent_turn_id THEN :older_seconds::float8 ELSE 0 END)
  AND now() + interval '1 minute'
ORDER BY n.stopping_at LIMIT :row_limit::int;

-- name: list_marked_in_hand :many
-- Rule 'marked': turns that are marked and not over after the grace, in hand.
SELECT t.* FROM state.turn_nodes n
JOIN state.agent_inbox i ON i.agent_turn_id = n.agent_turn_id AND i.message_type IN {turn_types}
JOIN state.turns_in_hand t ON t.agent_id = i.agent_id AND t.project_id = i.project_id
    AND t.agent_turn_id = i.agent_turn_id
WHERE n.stopping_at IS NOT NULL AND NOT n.ended
  AND n.stopping_at NOT BETWEEN now() - make_interval(secs => :older_seconds::float8) AND now() + interval '1 minute'
  AND t.worker_target = ANY (:worker_targets::text[])
LIMIT :row_limit::int;
