-- What must never be seen in conversations (protocol §9), each query answering the rows that break it.

-- name: open_without_messages :many
-- A thread is open exactly while a message of it is.
SELECT t.thread_id, t.status FROM state.threads t
WHERE (t.status = 'open') <> EXISTS (SELECT FROM state.thread_messages m WHERE m.thread_id = t.thread_id
                                     AND m.status IN ('pending', 'handling', 'waiting'));

-- name: request_without_one_answer :many
-- A message from outside has its answer exactly when nothing that descends from it is open.
SELECT m.message_id, m.status FROM state.thread_messages m
WHERE m.hop = 0 AND EXISTS (SELECT FROM state.thread_replies r WHERE r.request_id = m.message_id)
      = EXISTS (SELECT FROM state.thread_messages o WHERE o.request_id = m.message_id AND o.thread_id = m.thread_id
                AND o.status IN ('pending', 'handling', 'waiting'));

-- name: more_than_one_open :many
-- A message makes at most one other, so of what descends from one request at most one message is open.
SELECT m.request_id, count(*) FROM state.thread_messages m WHERE m.status IN ('pending', 'handling', 'waiting')
GROUP BY 1 HAVING count(*) > 1;

-- name: more_than_one_effect :many
SELECT m.cause_id, count(*) FROM state.thread_messages m WHERE m.cause_id IS NOT NULL GROUP BY 1 HAVING count(*) > 1;

-- name: misnumbered :many
SELECT t.thread_id, t.message_count, count(m.*), max(m.number) FROM state.threads t
JOIN state.thread_messages m ON m.thread_id = t.thread_id
GROUP BY 1, 2 HAVING NOT (t.message_count = count(m.*) AND max(m.number) = count(m.*));

-- name: live_in_an_ended_thread :many
SELECT s.segment_id FROM state.thread_segments s JOIN state.threads t ON t.thread_id = s.thread_id
WHERE s.status = 'live' AND t.status = 'ended';

-- name: live_below_a_pruned_one :many
SELECT s.segment_id FROM state.thread_segments s JOIN state.thread_segments p ON p.segment_id = s.parent_id
WHERE s.status = 'live' AND p.status = 'pruned';

-- name: open_in_a_pruned_segment :many
SELECT m.message_id FROM state.thread_messages m JOIN state.thread_segments s ON s.segment_id = m.segment_id
WHERE m.status IN ('pending', 'handling', 'waiting') AND s.status = 'pruned';

-- name: wrong_lineage :many
SELECT s.segment_id FROM state.thread_segments s LEFT JOIN state.thread_segments p ON p.segment_id = s.parent_id
WHERE s.lineage <> coalesce(p.lineage, '{}'::text[]) || s.segment_id;

-- name: ended_without_a_trace :many
SELECT m.message_id, m.status FROM state.thread_messages m
WHERE (m.status IN ('handled', 'canceled')) <> (m.ended_at IS NOT NULL)
   OR (m.status = 'canceled' AND m.ended_by IS NULL) OR (m.status = 'handled' AND m.effect IS NULL);
