-- Turns that the engine lost, and turns that show no sign of life (protocol §8, rules engine and reap).

-- name: take_duty :opt
-- A duty that some bridge does, at most every so often: one row for the bridge whose turn it is.
INSERT INTO state.duties AS d (duty) VALUES (:duty)
ON CONFLICT (duty) DO UPDATE SET taken_at = now() WHERE d.taken_at < now() - make_interval(secs => :every_seconds::float8)
RETURNING d.duty;

-- name: list_in_hand :many
-- Turns in hand for a while, in the order of their output boxes, beyond one of them: the index of busy heads, which idle
-- agents do not lengthen.
SELECT t.* FROM state.agent_state_head h
JOIN state.turns_in_hand t ON t.agent_id = h.agent_id AND t.project_id = h.project_id
WHERE h.output_box_id > :after_box_id::text::uuid AND t.worker_target = ANY (:worker_targets::text[])
  AND t.updated_at < now() - make_interval(secs => :older_seconds::float8)
ORDER BY h.output_box_id LIMIT :row_limit::int;

-- name: confirm_in_hand :many
-- Those of these turns that their agents still have in hand, at these epochs.
SELECT h.active_agent_turn_id AS agent_turn_id
FROM unnest(:project_ids::text[], :agent_ids::text[], :agent_turn_ids::text[], :turn_epochs::bigint[])
     t (project_id, agent_id, agent_turn_id, turn_epoch)
JOIN state.agent_state_head h ON h.agent_id = t.agent_id AND h.project_id = t.project_id
WHERE h.active_agent_turn_id = t.agent_turn_id AND h.turn_epoch = t.turn_epoch;

-- name: restart_turn :opt
-- A workflow was started again for this turn: counted once for each loss, whoever saw it (by counted: 1, or 0 for an
-- operator's), and the reports and stops that the lost one had in hand are due again.
WITH head AS (
    UPDATE state.agent_state_head h SET
        restart_count = h.restart_count + :counted::int,
        updated_at = CASE h.status WHEN 'dispatched' THEN h.updated_at ELSE now() END
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status <> 'idle' AND h.restart_count = :restart_count::int
    RETURNING h.restart_count
),
due AS (
    UPDATE state.agent_inbox i SET status = 'pending', next_retry_at = now() FROM head
    WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id AND i.status = 'processing' AND i.archived_at IS NULL
      AND i.message_type IN {signal_types}
)
SELECT head.restart_count FROM head;

-- name: list_undispatched :many
-- Rule 'dispatched, reap': turns that were leased and not begun, although a worker was there all that time.
SELECT t.* FROM state.turns_in_hand t
WHERE t.status = 'dispatched' AND t.worker_target = ANY (:worker_targets::text[])
  AND t.updated_at < now() - make_interval(secs => :older_seconds::float8)
  AND EXISTS (SELECT FROM state.workers w WHERE w.worker_target = t.worker_target
              AND w.started_at < now() - make_interval(secs => :older_seconds::float8)
              AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))
LIMIT :row_limit::int;

-- name: list_silent :many
-- Rule 'running, reap': turns that run, or should have woken, and changed nothing for long, although a worker was there.
SELECT t.* FROM state.turns_in_hand t
WHERE t.status IN ('running', 'suspended') AND t.worker_target = ANY (:worker_targets::text[])
  AND greatest(t.updated_at, t.resume_deadline) < now() - make_interval(secs => :older_seconds::float8)
  AND EXISTS (SELECT FROM state.workers w WHERE w.worker_target = t.worker_target
              AND w.started_at < now() - make_interval(secs => :older_seconds::float8)
              AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))
LIMIT :row_limit::int;

-- name: list_over :many
-- Those of these turns that have been over for a while, and for how long.
SELECT o.agent_turn_id, extract(epoch FROM now() - o.ended_at)::float8 AS over_seconds
FROM state.turn_outcomes o
WHERE o.agent_turn_id = ANY (:agent_turn_ids::text[]) AND o.ended_at < now() - make_interval(secs => :older_seconds::float8);

-- name: record_repairs :exec
-- What was mended, by rule; adds up over all bridges.
INSERT INTO state.repairs AS r (rule, repaired)
SELECT n.rule, n.repaired FROM unnest(:rules::text[], :repaired::bigint[]) n (rule, repaired) ORDER BY n.rule
ON CONFLICT (rule) DO UPDATE SET repaired = r.repaired + EXCLUDED.repaired, last_at = now();

-- name: list_repairs :many
-- What was mended since the database was made, by rule.
SELECT r.rule, r.repaired, r.last_at FROM state.repairs r ORDER BY r.rule;
