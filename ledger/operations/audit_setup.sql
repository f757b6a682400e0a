-- The transaction of an audit: it sees one moment, writes nothing, and has plans for large tables
-- (ledger/operations/audit.py).

-- name: begin_audit :exec
-- The first statement of the transaction: every rule sees the same moment, and none can write.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: tune_audit :one
-- Sets for the transaction: plans for the given parameters, and memory to hash a table. An audit of everything (:whole)
-- uses hash joins only. For an audit of a window (:windowed) a plan costs as many as the rows that it reads: a lookup
-- by key is one, so plans are the same whatever the past is. By the costs of pages they would read tables whole that
-- are up to ten times the window.
SELECT set_config('plan_cache_mode', 'force_custom_plan', true) AS plans,
       set_config('statement_timeout', '0', true) AS timeout,
       set_config('work_mem', '384MB', true) AS work_mem, set_config('enable_seqscan', 'on', true) AS seqscan,
       set_config('enable_mergejoin', 'off', true) AS mergejoin,
       set_config('enable_nestloop', (NOT :whole::boolean)::text, true) AS nestloop,
       set_config('enable_sort', (NOT :whole)::text, true) AS sort,
       set_config('random_page_cost', CASE WHEN :whole THEN '20' WHEN w.windowed THEN '0.01' ELSE '4' END,
                  true) AS random_page_cost,
       set_config('seq_page_cost', CASE WHEN w.windowed THEN '0.01' ELSE '1' END, true) AS seq_page_cost,
       set_config('cpu_tuple_cost', CASE WHEN w.windowed THEN '1' ELSE '0.01' END, true) AS tuple_cost,
       set_config('cpu_index_tuple_cost', CASE WHEN w.windowed THEN '0.1' ELSE '0.005' END, true) AS index_tuple_cost,
       set_config('cpu_operator_cost', CASE WHEN w.windowed THEN '0.0001' ELSE '0.0025' END, true) AS operator_cost,
       set_config('max_parallel_workers_per_gather', CASE WHEN w.windowed THEN '0' ELSE '2' END, true) AS workers
FROM (SELECT :windowed::boolean AS windowed) w;

-- name: list_expected_workflows :many
-- Active turns that must have a workflow: begun, or claimed long enough ago, and unchanged for a while. A turn of a
-- service with its own target (svc1_…) needs none.
SELECT t.project_id, t.agent_id, t.agent_turn_id, t.turn_epoch, t.status
FROM state.turns_in_hand t LEFT JOIN state.agent_inbox i ON i.inbox_id = t.inbox_id
WHERE t.updated_at < now() - make_interval(secs => :fresh_seconds::float8) AND NOT starts_with(t.worker_target, 'svc1_')
  AND (t.status <> 'dispatched'
       OR (i.status = 'processing' AND i.processed_at < now() - make_interval(secs => :claimed_seconds::float8)))
  AND (:project_id::text IS NULL OR t.project_id = :project_id)
ORDER BY t.project_id, t.agent_id;

-- name: list_ended_turns :many
-- Those of these turns that ended at least that long ago.
SELECT o.project_id, o.agent_id, o.agent_turn_id, o.turn_epoch, o.status
FROM state.turn_outcomes o
WHERE o.agent_turn_id = ANY (:agent_turn_ids::text[])
  AND o.ended_at < now() - make_interval(secs => :older_seconds::float8)
  AND (:project_id::text IS NULL OR o.project_id = :project_id);
