-- Retention (docs/operations.md): removes old rows of what has ended, batch by batch. Ids of threads, turns and boxes
-- sort by time, so a walk along a key reads only old rows; each batch reads a bounded number of rows.

-- name: take_retention :one
-- Takes the lock on removals; says whether this session has it. Two at once could each leave a card for the other to
-- remove.
SELECT pg_try_advisory_lock(hashtextextended('turnstile.retention', 0)) AS taken;

-- name: leave_retention :one
-- Releases the lock on removals.
SELECT pg_advisory_unlock(hashtextextended('turnstile.retention', 0)) AS left;

-- name: ledger_time :one
-- The time by the clock that ends were recorded with.
SELECT clock_timestamp() AS now;

-- name: begin_retention :one
-- The first statement of a batch: it marks the transaction as retention (invariant 10), and makes plans use indexes
-- where a plan for large batches would scan.
SELECT set_config('turnstile.retention', 'on', true) AS retention,
       set_config('enable_hashjoin', 'off', true) AS hashjoin, set_config('enable_mergejoin', 'off', true) AS mergejoin;

-- name: list_prunable_threads :one
-- Those of the next threads by id that may be removed; the last id that was read is null at the end.
WITH page AS MATERIALIZED (
    SELECT t.thread_id FROM state.threads t
    WHERE t.thread_id > :after AND t.thread_id <= coalesce(:until::text, (SELECT max(x.thread_id) FROM state.threads x))
    ORDER BY t.thread_id LIMIT :row_limit::int
)
SELECT (SELECT p.thread_id FROM page p ORDER BY p.thread_id DESC LIMIT 1) AS last,
       ARRAY(SELECT t.thread_id FROM page CROSS JOIN LATERAL (
                 SELECT x.* FROM state.prunable_threads(:before::timestamptz) x
                 WHERE x.thread_id = page.thread_id {by_key}) t
             WHERE :project_id::text IS NULL OR t.project_id = :project_id) AS found;

-- name: list_thread_cards :many
-- The payloads of these threads, which are cards in no box.
SELECT c.card_id FROM state.thread_cards(:ids::text[]) c;

-- name: remove_threads :many
-- Removes these threads with their segments, messages and replies; skips locked threads and those that were opened
-- again.
DELETE FROM state.threads t USING (
    SELECT x.thread_id FROM state.threads x
    WHERE x.thread_id = ANY (:ids::text[]) AND x.status = 'ended' AND x.ended_at < :before::timestamptz
    ORDER BY x.thread_id FOR UPDATE SKIP LOCKED) free
WHERE t.thread_id = free.thread_id
RETURNING t.thread_id AS id;

-- name: list_unused_instances :one
-- Those of the next instances of profiles that may be removed with their only turn, or put to sleep; the last agent
-- that was read is null at the end. Agents of one id in several projects are read together.
WITH page AS MATERIALIZED (
    SELECT a.agent_id, a.project_id FROM resource.project_agents a
    WHERE a.metadata ? 'instance_of' AND a.agent_id > :after
    ORDER BY a.agent_id FETCH FIRST (:row_limit::int) ROWS WITH TIES
)
SELECT (SELECT max(p.agent_id) FROM page p) AS last,
       ARRAY(SELECT page.project_id || '/' || page.agent_id FROM page
             WHERE (:project_id::text IS NULL OR page.project_id = :project_id)
             AND EXISTS (SELECT
                         FROM state.unused_instances(greatest(:before::timestamptz, :asleep_before::timestamptz)) u
                         WHERE u.agent_id = page.agent_id AND u.project_id = page.project_id {by_key})) AS found;

-- name: lock_instances :many
-- Locks those of these agents that nobody has locked: an enqueue of one waits from now on.
SELECT a.project_id || '/' || a.agent_id AS id FROM unnest(:ids::text[]) n (id)
JOIN resource.project_agents a ON a.agent_id = split_part(n.id, '/', 2) AND a.project_id = split_part(n.id, '/', 1)
ORDER BY a.agent_id, a.project_id FOR UPDATE OF a SKIP LOCKED;

-- name: judge_instances :many
-- What these agents come to: gone, with the only turn of each, or asleep. An enqueue may have committed before the
-- lock.
SELECT n.id, gone.only_turn_id, gone.only_turn_id IS NULL AS sleeps FROM unnest(:ids::text[]) n (id)
JOIN resource.project_agents a ON a.agent_id = split_part(n.id, '/', 2) AND a.project_id = split_part(n.id, '/', 1)
LEFT JOIN LATERAL (
    SELECT u.only_turn_id FROM state.unused_instances(:before::timestamptz) u
    WHERE u.agent_id = a.agent_id AND u.project_id = a.project_id AND u.only_turn_id IS NOT NULL {by_key}) gone ON true
WHERE gone.only_turn_id IS NOT NULL OR (a.status = 'active' AND EXISTS (
    SELECT FROM state.unused_instances(:asleep_before::timestamptz) u
    WHERE u.agent_id = a.agent_id AND u.project_id = a.project_id {by_key}));

-- name: sleep_instances :exec
-- Puts these locked instances to sleep: they wake with their next enqueue.
UPDATE resource.project_agents a SET status = 'dormant'
FROM unnest(:ids::text[]) n (id) WHERE a.agent_id = split_part(n.id, '/', 2)
  AND a.project_id = split_part(n.id, '/', 1);

-- name: remove_instances :exec
-- Removes these locked instances, whose turns are gone, with their heads and pointers.
SELECT FROM state.remove_instances(:ids::text[]);

-- name: list_prunable_turns :one
-- Those of the next turns by id that may be removed; the last id that was read is null at the end.
WITH page AS MATERIALIZED (
    SELECT o.agent_turn_id FROM state.turn_outcomes o
    WHERE o.agent_turn_id > :after
      AND o.agent_turn_id <= coalesce(:until::text, (SELECT max(x.agent_turn_id) FROM state.turn_outcomes x))
    ORDER BY o.agent_turn_id LIMIT :row_limit::int
)
SELECT (SELECT p.agent_turn_id FROM page p ORDER BY p.agent_turn_id DESC LIMIT 1) AS last,
       ARRAY(SELECT t.agent_turn_id FROM page CROSS JOIN LATERAL (
                 SELECT x.* FROM state.prunable_turns(:before::timestamptz) x
                 WHERE x.agent_turn_id = page.agent_turn_id {by_key}) t
             WHERE (:project_id::text IS NULL OR t.project_id = :project_id)
               AND (:planned::boolean OR NOT EXISTS (  -- of an instance that is in use: it goes with the instance
                    SELECT FROM state.turn_outcomes o JOIN resource.project_agents a ON a.agent_id = o.agent_id
                        AND a.project_id = o.project_id
                    JOIN state.agent_state_head h ON h.agent_id = o.agent_id
                        AND h.project_id = o.project_id AND h.queue_seq = 1
                    WHERE o.agent_turn_id = t.agent_turn_id
                      AND a.metadata ->> 'agent_turn_id' = o.agent_turn_id {by_key}))) AS found;

-- name: list_turn_cards :many
-- The result cards that were reported to these turns, and the cards of steers that no step asked with, which are in no
-- box.
SELECT c.card_id FROM state.turn_cards(:ids::text[]) c;

-- name: remove_turns :many
-- Removes all rows of these turns: outcome, inbox rows, calls, questions, steps, steers, receivers of notifications,
-- node, batches with their tasks, what was booked for them, and the edges that ask for or answer them. Skips locked
-- turns, and those that have a child which is not over: its end locks batch and call in another order. The turns' cards
-- stay as long as their boxes.
SELECT r.id FROM state.remove_turns(:ids::text[]) r;

-- name: list_prunable_conversations :one
-- Those of the next conversations, in the order of their boxes, that may be removed; the last box that was read is null
-- at the end.
WITH page AS MATERIALIZED (
    SELECT c.output_box_id FROM state.conversations c
    WHERE c.output_box_id > :after::text::uuid
      AND c.output_box_id <= coalesce(:until::text, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::uuid
    ORDER BY c.output_box_id LIMIT :row_limit::int
)
SELECT (SELECT p.output_box_id FROM page p ORDER BY p.output_box_id DESC LIMIT 1)::text AS last,
       ARRAY(SELECT x.output_box_id::text FROM page CROSS JOIN LATERAL (
                 SELECT c.* FROM state.prunable_conversations(:before::timestamptz) c
                 WHERE c.output_box_id = page.output_box_id {by_key}) x
             WHERE :project_id::text IS NULL OR x.project_id = :project_id) AS found;

-- name: remove_conversations :many
-- Removes these conversations; skips those that an enqueue has locked or used meanwhile. Their boxes are unused from
-- then on.
DELETE FROM state.conversations c USING (
    SELECT x.output_box_id FROM state.conversations x
    WHERE x.output_box_id = ANY (:ids::text[]::uuid[]) AND x.updated_at < :before::timestamptz
    ORDER BY x.output_box_id FOR UPDATE SKIP LOCKED) free
WHERE c.output_box_id = free.output_box_id
RETURNING c.output_box_id::text AS id;

-- name: list_prunable_boxes :one
-- Those of the next boxes by id that may be removed now, or after all prunable rows were removed (:planned).
WITH page AS MATERIALIZED (
    SELECT b.box_id FROM public.boxes b
    WHERE b.box_id > :after::text::uuid
      AND b.box_id <= coalesce(:until::text, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::uuid
    ORDER BY b.box_id LIMIT :row_limit::int
)
SELECT (SELECT p.box_id FROM page p ORDER BY p.box_id DESC LIMIT 1)::text AS last,
       ARRAY(SELECT u.box_id::text FROM page CROSS JOIN LATERAL (
                 SELECT x.* FROM state.unused_boxes(:before::timestamptz, :planned::boolean) x
                 WHERE x.box_id = page.box_id {by_key}) u
             WHERE :project_id::text IS NULL OR u.project_id = :project_id) AS found;

-- name: count_box_cards :one
-- The number of cards that would be removed with these boxes: those that are in no box that stays or comes later.
SELECT count(DISTINCT p.card_id) AS found FROM public.box_cards p
WHERE p.box_id = ANY (:ids::text[]::uuid[]) AND NOT EXISTS (
    SELECT FROM public.box_cards o WHERE o.card_id = p.card_id AND o.box_id <> ALL (:ids::text[]::uuid[])
      AND (o.box_id > :last::text::uuid
           OR NOT EXISTS (SELECT FROM state.unused_boxes(:before::timestamptz, true) u
                          WHERE u.box_id = o.box_id {by_key})) {by_key});

-- name: lock_boxes :many
-- Locks those of these boxes that no enqueue has locked; an enqueue that names one of them from now on waits, and finds
-- no box then.
SELECT b.box_id::text AS id FROM public.boxes b WHERE b.box_id = ANY (:ids::text[]::uuid[])
ORDER BY b.box_id FOR UPDATE SKIP LOCKED;

-- name: confirm_boxes :many
-- Those of these locked boxes that are still unused: an enqueue may have committed before the lock.
SELECT u.box_id::text AS id FROM unnest(:ids::text[]::uuid[]) locked (box_id)
CROSS JOIN LATERAL (SELECT x.* FROM state.unused_boxes(:before::timestamptz, false) x
                    WHERE x.box_id = locked.box_id {by_key}) u;

-- name: remove_boxes :one
-- Removes these boxes, and the cards that are in no other box.
SELECT r.boxes, r.cards FROM state.remove_boxes(:ids::text[]::uuid[]) r;

-- name: remove_cards :many
-- Removes these cards, which are in no box.
DELETE FROM public.cards c WHERE c.card_id = ANY (:ids::text[]) RETURNING c.card_id AS id;

-- name: list_loose_rows :one
-- Those of the next inbox rows by id that are final and have no turn: they were refused, or came after their turn was
-- removed.
WITH page AS MATERIALIZED (
    SELECT i.inbox_id FROM state.agent_inbox i
    WHERE i.inbox_id > :after
      AND i.inbox_id <= coalesce(:until::text, (SELECT max(x.inbox_id) FROM state.agent_inbox x))
    ORDER BY i.inbox_id LIMIT :row_limit::int
)
SELECT (SELECT p.inbox_id FROM page p ORDER BY p.inbox_id DESC LIMIT 1) AS last,
       ARRAY(SELECT i.inbox_id FROM page JOIN state.agent_inbox i USING (inbox_id)
             WHERE i.archived_at < :before::timestamptz AND (:project_id::text IS NULL OR i.project_id = :project_id)
               AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = i.agent_turn_id {by_key})
               AND NOT EXISTS (SELECT FROM state.agent_state_head h
                               WHERE h.agent_id = i.agent_id AND h.project_id = i.project_id
                               AND h.active_agent_turn_id = i.agent_turn_id {by_key})
               AND NOT EXISTS (SELECT FROM state.agent_inbox q
                               WHERE q.agent_turn_id = i.agent_turn_id AND q.archived_at IS NULL {by_key})) AS found;

-- name: remove_loose_rows :many
-- Removes these rows and their edges.
WITH gone AS (
    DELETE FROM state.agent_inbox i WHERE i.inbox_id = ANY (:ids::text[])
    RETURNING i.inbox_id, i.project_id, i.correlation_id, i.agent_turn_id
),
edges AS (
    DELETE FROM state.execution_edges e USING gone
    WHERE md5(e.correlation_id) = md5(gone.correlation_id) AND e.project_id = gone.project_id
      AND e.target_agent_turn_id = gone.agent_turn_id
)
SELECT gone.inbox_id AS id FROM gone;

-- name: list_old_rejections :one
-- Those of the next rejections that are older than the moment; ids rise with time, so the walk ends at the first page
-- without any.
WITH page AS MATERIALIZED (
    SELECT r.rejection_id, r.project_id, r.created_at FROM state.rejections r
    WHERE r.rejection_id > :after::text::bigint ORDER BY r.rejection_id LIMIT :row_limit::int
)
SELECT CASE WHEN bool_or(p.created_at < :before::timestamptz) THEN max(p.rejection_id)::text END AS last,
       coalesce(array_agg(p.rejection_id::text) FILTER (
           WHERE p.created_at < :before AND (:project_id::text IS NULL OR p.project_id = :project_id)), '{}') AS found
FROM page p;

-- name: remove_rejections :many
-- Removes these rejections.
DELETE FROM state.rejections r WHERE r.rejection_id = ANY (:ids::text[]::bigint[]) RETURNING r.rejection_id::text AS id;

-- name: list_old_events :one
-- Those of the next events for webhooks that go with no turn, are older than the moment, and are no longer to be sent.
WITH page AS MATERIALIZED (
    SELECT e.event_id, e.project_id, e.status, e.happened_at FROM state.webhook_events e
    WHERE e.agent_turn_id IS NULL AND e.event_id > :after ORDER BY e.event_id LIMIT :row_limit::int
)
SELECT max(p.event_id) AS last,
       coalesce(array_agg(p.event_id) FILTER (
           WHERE p.happened_at < :before::timestamptz AND p.status <> 'active'
             AND (:project_id::text IS NULL OR p.project_id = :project_id)), '{}') AS found
FROM page p;

-- name: remove_events :many
-- Removes these events.
DELETE FROM state.webhook_events e WHERE e.event_id = ANY (:ids::text[]) RETURNING e.event_id AS id;

-- name: list_old_firings :one
-- Those of the next firings of schedules that go with no turn and are older than the moment; their ids rise with time,
-- so the walk ends at the first page without any.
WITH page AS MATERIALIZED (
    SELECT f.firing_id, f.project_id, f.fired_at FROM state.schedule_firings f
    WHERE f.agent_turn_id IS NULL AND f.firing_id > :after ORDER BY f.firing_id LIMIT :row_limit::int
)
SELECT CASE WHEN bool_or(p.fired_at < :before::timestamptz) THEN max(p.firing_id) END AS last,
       coalesce(array_agg(p.firing_id) FILTER (
           WHERE p.fired_at < :before AND (:project_id::text IS NULL OR p.project_id = :project_id)), '{}') AS found
FROM page p;

-- name: remove_firings :many
-- Removes these firings.
DELETE FROM state.schedule_firings f WHERE f.firing_id = ANY (:ids::text[]) AND f.agent_turn_id IS NULL
RETURNING f.firing_id AS id;

-- name: list_old_files :one
-- Those of the next files that no card names, and that are older than the moment; the last id that was read is null at
-- the end. Files of CommonGround's programs stay: what names them is not known here.
WITH page AS MATERIALIZED (
    SELECT a.project_id, a.artifact_id, a.status, a.created_by, a.created_at FROM resource.artifacts a
    WHERE (a.project_id, a.artifact_id) > (split_part(:after, '/', 1), substr(:after, strpos(:after, '/') + 1))
    ORDER BY a.project_id, a.artifact_id LIMIT :row_limit::int
)
SELECT (SELECT p.project_id || '/' || p.artifact_id FROM page p
        ORDER BY p.project_id DESC, p.artifact_id DESC LIMIT 1) AS last,
       ARRAY(SELECT p.project_id || '/' || p.artifact_id FROM page p
             WHERE p.status = 'ready' AND p.created_by <> '' AND p.created_at < :before::timestamptz
             AND (:project_id::text IS NULL OR p.project_id = :project_id)
             AND NOT EXISTS (SELECT FROM state.artifact_refs r
                             WHERE r.project_id = p.project_id AND r.artifact_id = p.artifact_id)) AS found;

-- name: lock_files :many
-- Locks those of these files that nobody has locked: a card that names one waits from now on.
SELECT n.id FROM unnest(:ids::text[]) n (id)
JOIN resource.artifacts a ON a.project_id = split_part(n.id, '/', 1)
    AND a.artifact_id = substr(n.id, strpos(n.id, '/') + 1)
ORDER BY a.project_id, a.artifact_id FOR UPDATE OF a SKIP LOCKED;

-- name: remove_files :many
-- Lets nobody read these files any more, but those that a card names, which may have come before the lock; the safety
-- net removes their bytes, and then their rows.
UPDATE resource.artifacts a SET status = 'removed', updated_at = clock_timestamp() FROM unnest(:ids::text[]) n (id)
WHERE a.project_id = split_part(n.id, '/', 1) AND a.artifact_id = substr(n.id, strpos(n.id, '/') + 1)
  AND a.status = 'ready'
  AND NOT EXISTS (SELECT FROM state.artifact_refs r
                  WHERE r.project_id = a.project_id AND r.artifact_id = a.artifact_id)
RETURNING n.id;
