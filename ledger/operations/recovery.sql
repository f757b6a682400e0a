-- Turns that the engine lost, and turns that make no progress (protocol §8, rules engine and reap).

-- name: take_duty :opt
-- A duty that some bridge does, at most once per interval: returns one row to the bridge that takes it now. A duty that
-- was taken in the future, before the clock was set back, is free.
INSERT INTO state.duties AS d (duty) VALUES (:duty)
ON CONFLICT (duty) DO UPDATE SET taken_at = now()
WHERE d.taken_at NOT BETWEEN now() - make_interval(secs => :every_seconds::float8) AND now() + interval '1 second'
RETURNING d.duty;

-- name: follow_clock :many
-- Rule 'clock': if the ledger's clock is a minute or more behind its time at the last look, it was set back. Then those
-- times of what is in hand that lie ahead become now, or everything that goes by them would wait until the clock is
-- there again. Deadlines stay. Returns the agents.
WITH seen AS MATERIALIZED (SELECT d.taken_at FROM state.duties d WHERE d.duty = 'clock' FOR UPDATE),
look AS (  -- the source reads what was seen first: the row is locked, and its time known, before it changes
    INSERT INTO state.duties AS d (duty) SELECT 'clock' FROM (SELECT count(*) FROM seen) s
    ON CONFLICT (duty) DO UPDATE SET taken_at = now() RETURNING (SELECT seen.taken_at FROM seen) AS before
),
back AS MATERIALIZED (SELECT FROM look WHERE look.before > now() + interval '1 minute'),
heads AS (
    UPDATE state.agent_state_head h SET updated_at = now()
    WHERE EXISTS (SELECT FROM back) AND h.output_box_id IS NOT NULL AND h.updated_at > now() + interval '1 minute'
    RETURNING h.project_id, h.agent_id, h.active_agent_turn_id
),
due AS (
    UPDATE state.agent_inbox i SET next_retry_at = now(), processed_at = least(i.processed_at, now())
    WHERE EXISTS (SELECT FROM back) AND i.archived_at IS NULL AND i.inbox_id >= ''
      AND i.next_retry_at > now() + interval '1 minute' AND i.next_retry_at < 'infinity'
    RETURNING i.project_id, i.agent_id
),
calls AS (
    UPDATE state.turn_waiting_tools w SET updated_at = now(), begun_at = least(w.begun_at, now()) FROM heads
    WHERE w.agent_turn_id = heads.active_agent_turn_id AND w.project_id = heads.project_id AND w.wait_status = 'waiting'
),
workers AS (
    UPDATE state.workers w SET last_seen_at = now()
    WHERE EXISTS (SELECT FROM back) AND w.last_seen_at > now() + interval '1 minute'
)
SELECT due.project_id, due.agent_id FROM due UNION SELECT heads.project_id, heads.agent_id FROM heads;

-- name: list_in_hand :many
-- Turns that have been active for a while and are not among those given, in the order of their output boxes, after a
-- given one. It reads the index of busy heads, whose size does not depend on idle agents.
SELECT t.* FROM state.agent_state_head h
JOIN state.turns_in_hand t ON t.agent_id = h.agent_id AND t.project_id = h.project_id
WHERE h.output_box_id > :after_box_id::text::uuid AND t.worker_target = ANY (:worker_targets::text[])
  AND t.updated_at < now() - make_interval(secs => :older_seconds::float8)
  AND t.agent_turn_id NOT IN (SELECT e FROM unnest(:except_turn_ids::text[]) e)  -- hashed once, unlike an array
ORDER BY h.output_box_id LIMIT :row_limit::int;

-- name: find_in_hand :many
-- Those of these turns that are active.
SELECT t.* FROM (
    SELECT DISTINCT i.project_id, i.agent_id, i.agent_turn_id FROM state.agent_inbox i
    WHERE i.agent_turn_id = ANY (:agent_turn_ids::text[])) n
JOIN state.turns_in_hand t ON t.agent_id = n.agent_id AND t.project_id = n.project_id
WHERE t.agent_turn_id = n.agent_turn_id AND t.worker_target = ANY (:worker_targets::text[]);

-- name: list_not_in_hand :many
-- Those of these turns that are not active.
SELECT n.agent_turn_id FROM unnest(:agent_turn_ids::text[]) n (agent_turn_id)
WHERE n.agent_turn_id NOT IN (SELECT coalesce(h.active_agent_turn_id, '')
                              FROM state.agent_state_head h WHERE h.output_box_id IS NOT NULL);

-- name: count_in_hand :one
-- How many turns are active, and how many of them have been so for a while.
SELECT count(*) AS in_hand,
       count(*) FILTER (WHERE h.updated_at < now() - make_interval(secs => :older_seconds::float8)) AS older
FROM state.agent_state_head h
CROSS JOIN LATERAL (  -- LIMIT, so that each row is looked up by its key
    SELECT a.worker_target FROM resource.project_agents a
    WHERE a.agent_id = h.agent_id AND a.project_id = h.project_id LIMIT 1) a
WHERE h.output_box_id IS NOT NULL AND a.worker_target = ANY (:worker_targets::text[]);

-- name: confirm_in_hand :many
-- Those of these turns that are still active, at these epochs.
SELECT h.active_agent_turn_id AS agent_turn_id
FROM unnest(:project_ids::text[], :agent_ids::text[], :agent_turn_ids::text[], :turn_epochs::bigint[])
     t (project_id, agent_id, agent_turn_id, turn_epoch)
JOIN state.agent_state_head h ON h.agent_id = t.agent_id AND h.project_id = t.project_id
WHERE h.active_agent_turn_id = t.agent_turn_id AND h.turn_epoch = t.turn_epoch;

-- name: restart_turn :opt
-- Records that a workflow was started again for this turn, once per loss (counted: 1, or 0 for an operator's restart).
-- The reports and stops that the lost workflow had received become due again.
WITH head AS (
    UPDATE state.agent_state_head h SET
        restart_count = h.restart_count + :counted::int, is_carried = false,
        updated_at = CASE h.status WHEN 'dispatched' THEN h.updated_at ELSE now() END
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status <> 'idle' AND h.restart_count = :restart_count::int
    RETURNING h.restart_count
),
due AS (
    UPDATE state.agent_inbox i SET status = 'pending', next_retry_at = now() FROM head
    WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id
      AND i.status = 'processing' AND i.archived_at IS NULL
      AND i.message_type IN {signal_types}
)
SELECT head.restart_count FROM head;

-- name: list_carried :many
-- Rule 'era': turns that were in hand as an era began, and whose workflow is of the era before.
SELECT t.* FROM state.agent_state_head h JOIN state.turns_in_hand t ON t.agent_id = h.agent_id
    AND t.project_id = h.project_id
WHERE h.is_carried AND t.worker_target = ANY (:worker_targets::text[]) ORDER BY h.agent_id LIMIT :row_limit::int;

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
-- Rule 'running, reap': turns that run, or should have resumed, and have not changed for long, although a worker was
-- there. A suspended turn should have resumed when its deadline passed, or since a report of one of its calls is there.
-- Each with the time since which it has been silent, at least, by the clock of the ledger.
SELECT t.*, now() - make_interval(secs => :older_seconds::float8) AS silent_since FROM state.turns_in_hand t
WHERE t.status IN ('running', 'suspended') AND t.worker_target = ANY (:worker_targets::text[])
  AND greatest(t.updated_at, t.resume_deadline) < now() - make_interval(secs => :older_seconds::float8)
  AND (t.status = 'running' OR t.resume_deadline IS NOT NULL OR EXISTS (
       SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = t.agent_turn_id AND i.project_id = t.project_id
         AND i.message_type IN {report_types} AND i.archived_at IS NULL
         AND i.created_at < now() - make_interval(secs => :older_seconds::float8)))
  AND EXISTS (SELECT FROM state.workers w WHERE w.worker_target = t.worker_target
              AND w.started_at < now() - make_interval(secs => :older_seconds::float8)
              AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))
LIMIT :row_limit::int;

-- name: list_over :many
-- Those of these turns that ended a while ago, and how long ago.
SELECT o.agent_turn_id, extract(epoch FROM now() - o.ended_at)::float8 AS over_seconds
FROM unnest(:agent_turn_ids::text[]) n (agent_turn_id)
CROSS JOIN LATERAL (SELECT x.agent_turn_id, x.ended_at FROM state.turn_outcomes x
                    WHERE x.agent_turn_id = n.agent_turn_id
                    {by_key}) o
WHERE o.ended_at < now() - make_interval(secs => :older_seconds::float8);

-- name: list_unknown :many
-- Those of these turns that the ledger does not know. Of a turn in hand it has the inbox row.
SELECT n.agent_turn_id FROM unnest(:agent_turn_ids::text[]) n (agent_turn_id)
WHERE NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = n.agent_turn_id {by_key})
  AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = n.agent_turn_id {by_key});

-- name: name_ledger :one
-- The id of this ledger, which its workflows carry.
SELECT e.ledger_id::text AS ledger_id FROM state.enter_era() e;

-- name: record_repairs :exec
-- Adds repairs to the sums by rule, over all bridges.
INSERT INTO state.repairs AS r (rule, repaired)
SELECT n.rule, n.repaired FROM unnest(:rules::text[], :repaired::bigint[]) n (rule, repaired) ORDER BY n.rule
ON CONFLICT (rule) DO UPDATE SET repaired = r.repaired + EXCLUDED.repaired, last_at = now();

-- name: list_own_repairs :many
-- The sums of repairs by rule, if no other project has agents: they are counted over all projects.
SELECT r.rule, r.repaired, r.last_at FROM state.repairs r
WHERE NOT EXISTS (SELECT FROM resource.project_agents a WHERE a.project_id COLLATE "C" < :project_id)
  AND NOT EXISTS (SELECT FROM resource.project_agents a WHERE a.project_id COLLATE "C" > :project_id)
ORDER BY r.rule;

-- name: list_repairs :many
-- The sums of repairs by rule, since the database was created.
SELECT r.rule, r.repaired, r.last_at FROM state.repairs r ORDER BY r.rule;
