-- The message pump (protocol §9). Transitions lock the thread's row first, so that one runs at a time per thread, and
-- each sees the effects of those before it. begin_message locks only its message; a transition that ends or moves that
-- message waits.

-- name: find_message :opt
-- The message of an earlier send with this correlation.
SELECT m.message_id, m.request_digest, t.thread_id, t.project_id, t.channel_id, t.worker_target
FROM state.thread_messages m JOIN state.threads t ON t.thread_id = m.thread_id
WHERE m.correlation_id = :correlation_id AND m.project_id = :project_id;

-- name: add_thread :exec
-- Adds a root thread.
INSERT INTO state.threads (thread_id, project_id, channel_id, worker_target, requester, context_headers)
VALUES (:thread_id, :project_id, :channel_id, :worker_target, :requester, :context_headers::jsonb);

-- name: lock_thread :opt
-- Locks a thread of a project; the statements that follow in the transaction may count its rows.
SELECT t.thread_id, t.project_id, t.channel_id, t.worker_target, t.requester, t.message_count, t.status
FROM state.threads t WHERE t.thread_id = :thread_id AND t.project_id = :project_id FOR NO KEY UPDATE;

-- name: count_open_messages :one
-- The number of a thread's open messages.
SELECT count(*) AS found FROM state.thread_messages m
WHERE m.thread_id = :thread_id AND m.status IN ('pending', 'handling', 'waiting');

-- name: count_project_threads :one
-- The number of a project's open threads, at most row_limit.
SELECT count(*) AS found FROM (
    SELECT FROM state.threads t WHERE t.project_id COLLATE "C" = :project_id AND t.status = 'open'
    LIMIT :row_limit::int) t;

-- name: top_segment :opt
-- The live segment of this listener at the top of a thread's chain.
SELECT s.segment_id FROM state.thread_segments s
WHERE s.thread_id = :thread_id AND s.listener = :listener AND s.parent_id IS NULL AND s.status = 'live'
ORDER BY s.created_at LIMIT 1;

-- name: add_segment :exec
-- Adds a segment below another one, or at the top.
INSERT INTO state.thread_segments (segment_id, thread_id, parent_id, lineage, listener, caller_turn_id)
SELECT :segment_id, :thread_id, p.segment_id, coalesce(p.lineage, '{}'::text[]) || :segment_id::text,
       :listener, :caller_turn_id::text
FROM (SELECT) AS always LEFT JOIN state.thread_segments p ON p.segment_id = :parent_id::text;

-- name: add_card :exec
-- Adds a payload, which is a card in no box.
INSERT INTO public.cards (card_id, tenant_id, content, metadata)
VALUES (:card_id, :project_id, :content::jsonb, :metadata::jsonb);

-- name: add_message :exec
-- Adds a message to a segment, with the thread's next number, and makes the thread open.
WITH thread AS (
    UPDATE state.threads t SET message_count = t.message_count + 1, version = t.version + 1, updated_at = now(),
        status = 'open', end_reason = NULL, ended_at = NULL
    WHERE t.thread_id = :thread_id
    RETURNING t.thread_id, t.project_id, t.message_count
)
INSERT INTO state.thread_messages (message_id, thread_id, project_id, number, request_id,
                                   cause_id, hop, segment_id, from_id, kind,
                                   payload_card_id, correlation_id, request_digest, reply_to, context_headers)
SELECT :message_id, thread.thread_id, thread.project_id, thread.message_count, :request_id,
       :cause_id::text, :hop::int, :segment_id,
       :from_id, :kind, :payload_card_id, :correlation_id::text, :request_digest::text, :reply_to::text,
       :context_headers::jsonb
FROM thread;

-- name: begin_message :opt
-- Begins an open message; returns its payload, its segment and caller, and the outcome of its turn if there is one.
-- was: its former status. Beginning counts as an attempt of its handler, once per run (:begun_by). Two results change
-- nothing: was alone is null if the message was moved meanwhile to a segment that this statement does not see yet.
-- elsewhere is the listener's name if the caller lacks it, or the payload of an answer (:listeners and :payloads are
-- the caller's), and another worker has it. Payloads are checked of answers only: the pump wrote these, so they begin
-- with the tag.
WITH found AS MATERIALIZED (
    SELECT m.message_id, m.thread_id, m.status, m.segment_id, m.kind, m.payload_card_id FROM state.thread_messages m
    WHERE m.message_id = :message_id AND m.thread_id = :thread_id AND m.project_id = :project_id
      AND m.status IN ('pending', 'handling', 'waiting') FOR NO KEY UPDATE
),
needed AS MATERIALIZED (
    SELECT found.thread_id, s.listener,
           CASE WHEN found.kind IN ('response', 'self')
                     THEN substring(c.content ->> 'text' FROM '^<([A-Za-z0-9_.-]+)') END AS tag
    FROM found JOIN state.thread_segments s ON s.segment_id = found.segment_id
    LEFT JOIN public.cards c ON c.card_id = found.payload_card_id
),
elsewhere AS MATERIALIZED (
    SELECT n.listener FROM needed n JOIN state.threads t ON t.thread_id = n.thread_id
    WHERE (n.listener = ANY (:listeners::text[]) AND coalesce(n.tag = ANY (:payloads::text[]), true)) IS FALSE
      AND EXISTS (SELECT FROM state.workers w
                  WHERE w.worker_target = t.worker_target
                    AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8)
                    AND n.listener = ANY (w.listeners) AND coalesce(n.tag = ANY (w.payloads), true))
),
begun AS (
    UPDATE state.thread_messages m SET
        status = CASE found.status WHEN 'waiting' THEN 'waiting' ELSE 'handling' END,
        attempt = m.attempt + (found.status <> 'waiting' AND m.begun_by IS DISTINCT FROM :begun_by)::int,
        begun_by = :begun_by, begun_at = coalesce(m.begun_at, now())
    FROM found JOIN state.thread_segments s ON s.segment_id = found.segment_id
    WHERE m.message_id = found.message_id AND NOT EXISTS (SELECT FROM elsewhere)
    RETURNING m.*, found.status AS was
)
SELECT m.was, m.message_id, m.thread_id, m.request_id, m.hop, m.attempt, m.segment_id, m.from_id,
       m.kind, m.agent_turn_id, m.deadline,
       coalesce(m.deadline < now(), false) AS is_overdue, s.listener, s.parent_id, p.listener AS parent_listener,
       cardinality(s.lineage) AS depth,
       s.output_box_id::text AS output_box_id, s.caller_turn_id, t.requester, m.created_at, m.begun_at,
       coalesce(r.context_headers, t.context_headers) AS context_headers, c.content ->> 'text' AS payload,
       o.status AS outcome, o.error_code, d.content AS deliverable,
       a.agent_id AS caller_agent_id, e.listener AS elsewhere
FROM found
LEFT JOIN elsewhere e ON true
LEFT JOIN begun m ON true
LEFT JOIN state.thread_segments s ON s.segment_id = m.segment_id
LEFT JOIN state.threads t ON t.thread_id = m.thread_id
LEFT JOIN state.thread_messages r ON r.message_id = m.request_id
LEFT JOIN public.cards c ON c.card_id = m.payload_card_id
LEFT JOIN state.thread_segments p ON p.segment_id = s.parent_id
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = m.agent_turn_id
LEFT JOIN public.cards d ON d.card_id = o.deliverable_card_id
LEFT JOIN LATERAL (SELECT i.agent_id FROM state.agent_inbox i WHERE i.agent_turn_id = s.caller_turn_id
                   AND i.message_type = 'turn' LIMIT 1) a ON true;

-- name: find_request :one
-- The request of a segment from which one of its messages follows; found by following the causes back.
WITH RECURSIVE past AS (
    SELECT m.cause_id, m.segment_id, m.kind, m.payload_card_id FROM state.thread_messages m
    WHERE m.message_id = :message_id
    UNION ALL
    SELECT m.cause_id, m.segment_id, m.kind, m.payload_card_id FROM past
    -- each by its key
    CROSS JOIN LATERAL (SELECT * FROM state.thread_messages m WHERE m.message_id = past.cause_id LIMIT 1) m
    WHERE past.kind <> 'request' OR past.segment_id <> :segment_id
)
SELECT c.content ->> 'text' AS payload FROM past JOIN public.cards c ON c.card_id = past.payload_card_id
WHERE past.kind = 'request' AND past.segment_id = :segment_id;

-- name: own_box :one
-- The box of an agent in a segment; made if there is none.
WITH segment AS (
    UPDATE state.thread_segments s SET output_box_id = coalesce(s.output_box_id, :new_box_id::uuid)
    WHERE s.segment_id = :segment_id
    RETURNING s.output_box_id
),
made AS (
    INSERT INTO public.boxes (box_id, tenant_id)
    SELECT s.output_box_id, :project_id FROM segment s WHERE s.output_box_id = :new_box_id::uuid
    ON CONFLICT DO NOTHING
)
SELECT s.output_box_id::text AS output_box_id FROM segment s;

-- name: await_turn :opt
-- Makes the message wait for the end of its agent's turn, at most until the deadline.
WITH thread AS (
    UPDATE state.threads t SET version = t.version + 1, updated_at = now()
    WHERE t.thread_id = :thread_id AND t.project_id = :project_id
    RETURNING t.thread_id
),
message AS (
    UPDATE state.thread_messages m SET status = 'waiting', agent_turn_id = :agent_turn_id,
        deadline = coalesce(m.deadline, now() + make_interval(secs => :deadline_seconds::float8))
    FROM thread WHERE m.message_id = :message_id AND m.thread_id = thread.thread_id
      AND m.status IN ('handling', 'waiting')
    RETURNING m.message_id, m.segment_id
),
segment AS (
    UPDATE state.thread_segments s SET output_box_id = :output_box_id::uuid
    FROM message WHERE s.segment_id = message.segment_id
)
SELECT message.message_id FROM message;

-- name: end_message :opt
-- Ends a message: handled, or canceled if its agent's turn is late. No row if it was settled before.
UPDATE state.thread_messages m SET status = :status, effect = :effect, ended_by = :ended_by::text,
                                   ended_at = clock_timestamp()
WHERE m.message_id = :message_id AND m.thread_id = :thread_id AND m.status IN ('pending', 'handling', 'waiting')
RETURNING m.message_id, m.request_id, m.hop, m.segment_id;

-- name: prune_segment :many
-- Ends a segment and all below it, and cancels their open messages. Requests that nobody has begun move to a new
-- segment of the same listener instead. Returns the canceled messages. Statuses are read from the locked rows, since a
-- message may be begun until then; for the same reason ended_at is the clock's time, not the transaction's.
WITH below AS MATERIALIZED (
    SELECT s.segment_id, s.parent_id, s.lineage, s.listener, s.caller_turn_id FROM state.thread_segments s
    WHERE s.thread_id = :thread_id AND s.status = 'live' AND s.lineage @> ARRAY[:segment_id::text]
),
found AS MATERIALIZED (
    SELECT m.message_id, m.segment_id = :segment_id AND m.status = 'pending' AND m.kind = 'request' AS stays
    FROM below b JOIN state.thread_messages m ON m.thread_id = :thread_id AND m.segment_id = b.segment_id
        AND m.status IN ('pending', 'handling', 'waiting')
    FOR NO KEY UPDATE OF m
),
fresh AS (
    INSERT INTO state.thread_segments (segment_id, thread_id, parent_id, lineage, listener, caller_turn_id)
    SELECT :fresh_segment_id, :thread_id, b.parent_id, trim_array(b.lineage, 1) || :fresh_segment_id::text,
           b.listener, b.caller_turn_id
    FROM below b WHERE b.segment_id = :segment_id AND EXISTS (SELECT FROM found WHERE found.stays)
),
pruned AS (
    UPDATE state.thread_segments s SET status = 'pruned', ended_at = now()
    FROM below WHERE s.segment_id = below.segment_id
),
settled AS (
    UPDATE state.thread_messages m SET
        segment_id = CASE WHEN found.stays THEN :fresh_segment_id ELSE m.segment_id END,
        status = CASE WHEN found.stays THEN m.status ELSE 'canceled' END,
        ended_by = CASE WHEN NOT found.stays THEN :ended_by END,
        ended_at = CASE WHEN NOT found.stays THEN clock_timestamp() END
    FROM found WHERE m.message_id = found.message_id
    RETURNING m.message_id, m.request_id, m.status
)
SELECT e.message_id, e.request_id FROM settled e WHERE e.status = 'canceled';

-- name: add_reply :exec
-- Adds the answer to a message from outside, unless it has one.
INSERT INTO state.thread_replies (request_id, thread_id, kind, reason, payload_card_id, from_id)
VALUES (:request_id, :thread_id, :kind, :reason, :payload_card_id::text, :from_id::text)
ON CONFLICT DO NOTHING;

-- name: close_requests :exec
-- Adds an answer without payload to each of these requests that has neither an answer nor open messages.
INSERT INTO state.thread_replies (request_id, thread_id, kind, reason)
SELECT r.request_id, :thread_id, 'ended', :reason FROM unnest(:request_ids::text[]) r (request_id)
WHERE NOT EXISTS (SELECT FROM state.thread_messages m WHERE m.thread_id = :thread_id AND m.request_id = r.request_id
                  AND m.status IN ('pending', 'handling', 'waiting'))
ON CONFLICT DO NOTHING;

-- name: close_thread :exec
-- Completes a change: raises the thread's version, and ends the thread and its segments if no message is open.
WITH thread AS (
    UPDATE state.threads t SET version = t.version + 1, updated_at = now(),
        status = CASE WHEN f.flies THEN 'open' ELSE 'ended' END,
        ended_at = CASE WHEN f.flies THEN NULL ELSE clock_timestamp() END,
        end_reason = CASE WHEN f.flies THEN NULL ELSE :reason END
    FROM (SELECT EXISTS (SELECT FROM state.thread_messages m WHERE m.thread_id = :thread_id
                         AND m.status IN ('pending', 'handling', 'waiting')) AS flies) f
    WHERE t.thread_id = :thread_id
    RETURNING t.thread_id, t.status
)
UPDATE state.thread_segments s SET status = 'pruned', ended_at = now()
FROM thread WHERE thread.status = 'ended' AND s.thread_id = thread.thread_id AND s.status = 'live';

-- name: look_at_thread :opt
-- A thread's state, bounded: its first open messages, due ones before those that wait for turns; the number of all open
-- ones; some of its live chains, as far as their names fit.
SELECT t.version,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('message_id', f.message_id, 'status', f.status, 'listener', f.name,
                                                     'deadline', f.deadline, 'turn_is_over', f.is_over)
                                  ORDER BY f.place), '[]')
        FROM (SELECT e.*, coalesce(substring(s.listener FROM '^[A-Za-z0-9_-]{1,59}$'), '?') AS name,
                     row_number() OVER (ORDER BY e.is_idle, e.deadline, e.number) AS place
              FROM (SELECT m.*, o.agent_turn_id IS NOT NULL AS is_over, m.status = 'waiting'
                               AND o.agent_turn_id IS NULL AS is_idle
                    FROM state.thread_messages m LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = m.agent_turn_id
                    WHERE m.thread_id = t.thread_id AND m.status IN ('pending', 'handling', 'waiting')) e
              JOIN state.thread_segments s ON s.segment_id = e.segment_id
              ORDER BY place LIMIT :row_limit::int) f) AS open,
       (SELECT count(*) FROM state.thread_messages m
        WHERE m.thread_id = t.thread_id AND m.status IN ('pending', 'handling', 'waiting')) AS open_count,
       (SELECT coalesce(jsonb_agg(left(t.requester || '.' || c.chain, 200) ORDER BY c.chain), '[]') FROM (
            SELECT (SELECT string_agg(coalesce(substring(x.listener FROM '^[A-Za-z0-9_-]{1,59}$'), '?'), '.'
                                      ORDER BY l.place)
                    FROM unnest(s.lineage) WITH ORDINALITY l (id, place)
                    JOIN state.thread_segments x ON x.segment_id = l.id) AS chain
            FROM state.thread_segments s WHERE s.thread_id = t.thread_id AND s.status = 'live' LIMIT 10) c) AS chains
FROM state.threads t WHERE t.thread_id = :thread_id AND t.project_id = :project_id;

-- name: list_canceled_turns :many
-- Rule 'thread_turn': active or queued turns whose message was canceled, in threads of these targets.
SELECT i.agent_turn_id, t.project_id, t.channel_id FROM (
    SELECT h.active_inbox_id AS inbox_id FROM state.agent_state_head h WHERE h.output_box_id IS NOT NULL
    UNION ALL
    SELECT q.inbox_id FROM state.queued_turns q) live
CROSS JOIN LATERAL (SELECT x.agent_turn_id, x.correlation_id, x.project_id FROM state.agent_inbox x
                    WHERE x.inbox_id = live.inbox_id LIMIT 1) i -- each by its key
CROSS JOIN LATERAL (SELECT x.thread_id, x.status FROM state.thread_messages x
                    WHERE x.message_id = i.correlation_id AND x.project_id = i.project_id LIMIT 1) m
JOIN state.threads t ON t.thread_id = m.thread_id AND m.status = 'canceled'
WHERE t.worker_target = ANY (:worker_targets::text[])
LIMIT :row_limit::int;

-- name: list_ended_messages :many
-- The messages that the handling of this one canceled, each with its agent's turn; is_in_hand: a handler may still run.
SELECT m.message_id, i.agent_turn_id, m.begun_at IS NOT NULL AND i.agent_turn_id IS NULL AS is_in_hand
FROM state.thread_messages m
LEFT JOIN state.agent_inbox i ON i.correlation_id = m.message_id
    AND i.project_id = m.project_id AND i.message_type = 'turn'
WHERE m.ended_by = :ended_by AND m.project_id = :project_id ORDER BY m.number;

-- name: list_replies :many
-- A thread's answers that are not marked as announced.
SELECT r.request_id, r.thread_id, r.kind, r.reason, r.from_id, r.payload_card_id,
       c.content ->> 'text' AS payload, m.reply_to,
       m.correlation_id, t.project_id, t.channel_id, coalesce(m.context_headers, t.context_headers) AS context_headers,
       m.created_at AS requested_at, r.created_at, x.listener
FROM state.thread_replies r
JOIN state.thread_messages m ON m.message_id = r.request_id
LEFT JOIN state.thread_segments x ON x.segment_id = m.segment_id
JOIN state.threads t ON t.thread_id = r.thread_id
LEFT JOIN public.cards c ON c.card_id = r.payload_card_id
WHERE r.announced_at IS NULL AND r.thread_id = :thread_id
ORDER BY r.created_at LIMIT :row_limit::int;

-- name: list_late_replies :many
-- Rule 'thread_reply': the same for all threads of these targets, if the answers are old enough.
SELECT r.request_id, r.thread_id, r.kind, r.reason, r.from_id, r.payload_card_id,
       c.content ->> 'text' AS payload, m.reply_to,
       m.correlation_id, t.project_id, t.channel_id, coalesce(m.context_headers, t.context_headers) AS context_headers,
       m.created_at AS requested_at, r.created_at, x.listener
FROM state.thread_replies r
JOIN state.thread_messages m ON m.message_id = r.request_id
LEFT JOIN state.thread_segments x ON x.segment_id = m.segment_id
JOIN state.threads t ON t.thread_id = r.thread_id
LEFT JOIN public.cards c ON c.card_id = r.payload_card_id
WHERE r.announced_at IS NULL
  AND r.created_at NOT BETWEEN clock_timestamp() - make_interval(
      secs => :older_seconds::float8) AND clock_timestamp() + interval '1 minute'
  AND t.worker_target = ANY (:worker_targets::text[])
ORDER BY r.created_at LIMIT :row_limit::int;

-- name: mark_replied :many
-- Marks these answers as announced; returns those that were not marked before.
UPDATE state.thread_replies r SET announced_at = now()
WHERE r.request_id = ANY (:request_ids::text[]) AND r.announced_at IS NULL
RETURNING r.request_id;

-- name: messages_of_turns :many
-- The open messages that wait for these turns, with their threads.
SELECT m.message_id, t.project_id, t.channel_id, t.thread_id, t.worker_target FROM state.thread_messages m
JOIN state.threads t ON t.thread_id = m.thread_id
WHERE m.agent_turn_id = ANY (:agent_turn_ids::text[]) AND m.status = 'waiting';

-- name: list_stalled_threads :many
-- Rule 'thread': open threads with a message that should have advanced: nobody began it, its turn is over or its
-- deadline passed.
SELECT DISTINCT t.project_id, t.channel_id, t.thread_id, t.worker_target FROM state.thread_messages m
JOIN state.threads t ON t.thread_id = m.thread_id
LEFT JOIN LATERAL (SELECT x.ended_at FROM state.turn_outcomes x
                   WHERE x.agent_turn_id = m.agent_turn_id LIMIT 1) o ON true
WHERE m.status IN ('pending', 'handling', 'waiting') AND t.status = 'open'
  AND t.worker_target = ANY (:worker_targets::text[])
  AND CASE m.status
      WHEN 'pending' THEN m.created_at NOT BETWEEN now() - make_interval(secs => :older_seconds::float8)
           AND now() + interval '1 minute'
      WHEN 'waiting' THEN m.deadline < now() - make_interval(secs => :older_seconds::float8)
          OR o.ended_at NOT BETWEEN now() - make_interval(secs => :older_seconds::float8)
           AND now() + interval '1 minute' END
LIMIT :row_limit::int;

-- name: list_unserved :many
-- Listeners with messages that nobody has begun for a while and that no live worker has; workers: live ones of their
-- target.
SELECT t.worker_target, s.listener, count(*) AS waiting,
       extract(epoch FROM now() - min(m.created_at))::float8 AS waited_seconds,
       (SELECT count(*) FROM state.workers w WHERE w.worker_target = t.worker_target
        AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8)) AS workers
FROM state.thread_messages m
JOIN state.threads t ON t.thread_id = m.thread_id
JOIN state.thread_segments s ON s.segment_id = m.segment_id
WHERE m.status IN ('pending', 'handling', 'waiting') AND m.status = 'pending' AND t.status = 'open'
  AND t.worker_target = ANY (:worker_targets::text[])
  AND m.created_at < now() - make_interval(secs => :older_seconds::float8)
  AND NOT EXISTS (SELECT FROM state.workers w WHERE w.worker_target = t.worker_target AND s.listener = ANY (w.listeners)
                  AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))
GROUP BY t.worker_target, s.listener ORDER BY waited_seconds DESC LIMIT :row_limit::int;

-- name: declare_listeners :exec
-- Stores the listeners of a worker that starts, as it has them. Removes those of its target that no worker has.
WITH
given AS MATERIALIZED (
    SELECT d.* FROM jsonb_to_recordset(:listeners::jsonb) d
        (listener text, description text, agent_id text, is_agent boolean, peers text[], root_tag text,
         xsd text, answers jsonb)
),
gone AS (
    DELETE FROM state.listeners l
    WHERE l.worker_target = :worker_target AND l.listener NOT IN (SELECT given.listener FROM given)
      AND NOT EXISTS (SELECT FROM state.workers w
                      WHERE w.worker_target = l.worker_target AND l.listener = ANY (w.listeners))
)
INSERT INTO state.listeners AS l (worker_target, listener, description, agent_id, is_agent,
                                  peers, root_tag, xsd, answers)
SELECT :worker_target, g.listener, g.description, g.agent_id, g.is_agent, g.peers, g.root_tag,
       g.xsd, g.answers FROM given g
ORDER BY g.listener
ON CONFLICT (worker_target, listener) DO UPDATE SET
    description = EXCLUDED.description, agent_id = EXCLUDED.agent_id, is_agent = EXCLUDED.is_agent,
    peers = EXCLUDED.peers,
    root_tag = EXCLUDED.root_tag, xsd = EXCLUDED.xsd, answers = EXCLUDED.answers, declared_at = now();

-- name: list_listeners :many
-- The listeners of a target by name, or one of them, with the number of live workers that have each. XSDs are null
-- unless asked for.
SELECT l.listener, l.description, l.agent_id, l.is_agent, l.peers, l.root_tag,
       CASE WHEN x.wanted THEN l.xsd END AS xsd,
       CASE WHEN x.wanted THEN l.answers
            ELSE (SELECT coalesce(jsonb_agg(a - 'xsd'), '[]') FROM jsonb_array_elements(l.answers) a) END AS answers,
       l.declared_at,
       (SELECT count(*) FROM state.workers w WHERE w.worker_target = l.worker_target AND l.listener = ANY (w.listeners)
          AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8)) AS workers
FROM state.listeners l CROSS JOIN (SELECT :with_xsd::boolean OR :name::text IS NOT NULL AS wanted) x
WHERE l.worker_target = :worker_target AND (:name::text IS NULL OR l.listener = :name)
ORDER BY l.listener;

-- name: list_served :many
-- The listeners of a target's live workers, and the number of workers for each; a null listener: workers without a
-- list.
SELECT l.listener, count(*) AS workers FROM state.workers w LEFT JOIN LATERAL unnest(w.listeners) l (listener) ON true
WHERE w.worker_target = :worker_target AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8)
GROUP BY l.listener ORDER BY l.listener;

-- name: list_open_threads :many
-- Rule 'thread_engine': open threads that have not changed for a while, in the order of their ids, after a given one.
SELECT t.project_id, t.channel_id, t.thread_id, t.worker_target FROM state.threads t
WHERE t.status = 'open' AND t.worker_target = ANY (:worker_targets::text[])
  AND t.updated_at NOT BETWEEN now() - make_interval(secs => :older_seconds::float8) AND now() + interval '1 minute'
  AND t.thread_id > :after_thread_id
ORDER BY t.thread_id LIMIT :row_limit::int;

-- name: list_threads :many
-- Root threads of a project, the newest first.
SELECT t.thread_id, t.channel_id, t.requester, t.status, t.end_reason, t.message_count,
       t.created_at, t.updated_at, t.ended_at,
       (SELECT count(*) FROM state.thread_messages m WHERE m.thread_id = t.thread_id
        AND m.status IN ('pending', 'handling', 'waiting')) AS open_count
FROM state.threads t WHERE t.project_id COLLATE "C" = :project_id AND (:status::text IS NULL OR t.status = :status)
ORDER BY t.created_at DESC LIMIT :row_limit::int;

-- name: find_thread :opt
-- One root thread of a project.
SELECT t.thread_id, t.channel_id, t.requester, t.status, t.end_reason, t.message_count,
       t.created_at, t.updated_at, t.ended_at,
       (SELECT count(*) FROM state.thread_messages m WHERE m.thread_id = t.thread_id
        AND m.status IN ('pending', 'handling', 'waiting')) AS open_count
FROM state.threads t WHERE t.thread_id = :thread_id AND t.project_id = :project_id;

-- name: list_thread_messages :many
-- The messages of a thread in order, each with its chain, its agent's turn and its effect.
SELECT m.message_id, m.number, m.request_id, m.cause_id, m.segment_id, t.requester || '.' || (
           SELECT string_agg(x.listener, '.' ORDER BY l.place) FROM unnest(s.lineage) WITH ORDINALITY l (id, place)
           JOIN state.thread_segments x ON x.segment_id = l.id) AS chain,
       m.from_id, m.kind, m.status, m.effect, m.attempt, m.agent_turn_id, m.payload_card_id,
       m.created_at, m.begun_at, m.ended_at
FROM state.thread_messages m
JOIN state.threads t ON t.thread_id = m.thread_id
JOIN state.thread_segments s ON s.segment_id = m.segment_id
WHERE m.thread_id = :thread_id ORDER BY m.number LIMIT :row_limit::int;

-- name: list_thread_replies :many
-- The answers to a thread's requests, oldest first.
SELECT r.request_id, r.kind, r.reason, r.from_id, r.payload_card_id, r.created_at, r.announced_at,
       c.content ->> 'text' AS payload
FROM state.thread_messages m JOIN state.thread_replies r ON r.request_id = m.message_id
LEFT JOIN public.cards c ON c.card_id = r.payload_card_id
WHERE m.thread_id = :thread_id ORDER BY r.created_at LIMIT :row_limit::int;

-- name: list_thread_payloads :many
-- The payloads of a thread's messages, in order.
SELECT m.message_id, c.content ->> 'text' AS payload FROM state.thread_messages m
JOIN public.cards c ON c.card_id = m.payload_card_id
WHERE m.thread_id = :thread_id ORDER BY m.number LIMIT :row_limit::int;
