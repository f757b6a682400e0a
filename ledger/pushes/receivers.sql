-- Receivers of push notifications (protocol §17.3).

-- name: set_receiver :one
-- Notifies a receiver of a turn from now on: of its end, if it is over. The same receiver again has what is given now.
-- A turn has at most `most` receivers, a caller `most_open` that still get notifications.
WITH turn AS MATERIALIZED (SELECT i.* FROM {request_of(:agent_turn_id)} i WHERE i.channel_id = :channel_id),
held AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE p.status = 'active' AND p.receiver_id <> :receiver_id) AS others
    FROM state.push_receivers p
    WHERE p.agent_turn_id = :agent_turn_id
), allowed AS MATERIALIZED (
    SELECT CASE
               WHEN h.others >= :most::int THEN 'too_many_receivers'
               WHEN NOT EXISTS (SELECT FROM state.push_receivers p
                                WHERE p.agent_turn_id = :agent_turn_id AND p.receiver_id = :receiver_id
                                  AND p.status = 'active' AND p.created_by = :created_by)
                    AND state.is_full('pushes', t.project_id, :created_by, :most_open::int) THEN 'pushes_full'
               ELSE 'accepted'
           END AS verdict
    FROM turn t CROSS JOIN held h
), written AS (
    INSERT INTO state.push_receivers (agent_turn_id, receiver_id, project_id, channel_id, url,
                                      token, created_by, told_state)
    SELECT t.agent_turn_id, :receiver_id, t.project_id, t.channel_id, :url, :token, :created_by,
           CASE WHEN EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = t.agent_turn_id) THEN NULL
                ELSE {told_state(t)} END
    FROM turn t CROSS JOIN allowed WHERE allowed.verdict = 'accepted'
    ON CONFLICT (agent_turn_id, receiver_id) DO UPDATE SET url = excluded.url, token = excluded.token,
                                                           created_by = excluded.created_by,
        status = 'active', told_state = excluded.told_state, attempts = 0, next_at = now(), last_error = NULL
    RETURNING receiver_id
)
SELECT coalesce((SELECT a.verdict FROM allowed a), 'unknown_turn') AS verdict;

-- name: remove_receiver :one
-- Notifies a receiver no more, and forgets its secret; says whether the turn is there.
WITH turn AS MATERIALIZED (SELECT i.agent_turn_id FROM {request_of(:agent_turn_id)} i WHERE i.channel_id = :channel_id),
removed AS (
    UPDATE state.push_receivers p SET status = 'removed', token = NULL, last_error = NULL FROM turn t
    WHERE p.agent_turn_id = t.agent_turn_id AND p.receiver_id = :receiver_id AND p.status <> 'removed'
)
SELECT EXISTS (SELECT FROM turn) AS found;

-- name: claim_pushes :many
-- Takes receivers whose turn is in a state that they were not sent, the longest due first, for `hold_seconds`: after
-- that they are due again. At most `share` of a project, and none of projects that have enough in hand.
WITH turns AS MATERIALIZED (
    SELECT p.agent_turn_id, p.receiver_id, p.project_id, p.next_at, p.told_state, {told_state(i)} AS state,
           i.agent_id, coalesce(nullif(i.payload ->> 'conversation_id', ''), i.agent_turn_id) AS context_id
    FROM state.push_receivers p JOIN state.agent_inbox i ON i.agent_turn_id = p.agent_turn_id
        AND i.project_id = p.project_id
        AND i.message_type IN {turn_types}
    WHERE p.status = 'active' AND p.next_at <= now() AND p.project_id <> ALL (:busy_projects::text[])
), due AS MATERIALIZED (
    SELECT t.*, row_number() OVER (PARTITION BY t.project_id ORDER BY t.next_at) AS place
    FROM turns t WHERE t.state IS DISTINCT FROM t.told_state
), free AS MATERIALIZED (
    SELECT p.agent_turn_id, p.receiver_id, d.state, d.agent_id, d.context_id
    FROM due d JOIN state.push_receivers p ON p.agent_turn_id = d.agent_turn_id AND p.receiver_id = d.receiver_id
    WHERE d.place <= :share::int AND p.status = 'active' AND p.next_at <= now()
    ORDER BY d.next_at LIMIT :row_limit::int FOR UPDATE OF p SKIP LOCKED
)
UPDATE state.push_receivers p SET state = f.state, next_at = now() + make_interval(secs => :hold_seconds::float8),
    number = p.number + (p.state IS DISTINCT FROM f.state)::int,
    state_at = CASE WHEN p.state IS DISTINCT FROM f.state THEN now() ELSE p.state_at END,
    attempts = CASE WHEN p.state IS DISTINCT FROM f.state THEN 1 ELSE p.attempts + 1 END
FROM free f WHERE p.agent_turn_id = f.agent_turn_id AND p.receiver_id = f.receiver_id
RETURNING p.agent_turn_id, p.receiver_id, p.project_id, p.channel_id, f.agent_id, f.context_id,
          p.url, p.token, p.state, p.number, p.state_at, p.attempts;

-- name: record_push :one
-- A receiver has acknowledged a state, if no other was sent since. After the last one nothing more is sent, and its
-- secret is forgotten.
WITH recorded AS (
    UPDATE state.push_receivers p SET told_state = p.state, attempts = 0, next_at = now(), last_error = NULL,
        status = CASE WHEN p.state IN ('completed', 'failed', 'canceled') THEN 'done' ELSE p.status END,
        token = CASE WHEN p.state IN ('completed', 'failed', 'canceled') THEN NULL ELSE p.token END
    WHERE p.agent_turn_id = :agent_turn_id AND p.receiver_id = :receiver_id
      AND p.number = :number AND p.status = 'active'
    RETURNING p.receiver_id
)
SELECT EXISTS (SELECT FROM recorded) AS recorded;

-- name: fail_push :one
-- A receiver has not acknowledged a state: it is sent again after a pause that grows, or, after `give_up_seconds` of
-- this, no more, which is recorded as a rejection.
WITH failed AS (
    UPDATE state.push_receivers p SET last_error = :error, next_at = now() + make_interval(
        secs => least(:longest_pause::float8, power(2, least(p.attempts, 20) - 1))),
        status = CASE WHEN :gone::boolean OR p.state_at < now() - make_interval(secs => :give_up_seconds::float8)
                           THEN 'given_up' ELSE p.status END,
        token = CASE WHEN :gone OR p.state_at < now() - make_interval(secs => :give_up_seconds) THEN NULL
                     ELSE p.token END
    WHERE p.agent_turn_id = :agent_turn_id AND p.receiver_id = :receiver_id
      AND p.number = :number AND p.status = 'active'
    RETURNING p.project_id, p.agent_turn_id, p.receiver_id, p.status
), recorded AS (
    INSERT INTO state.rejections (project_id, source, error_code, error, ids)
    SELECT f.project_id, 'push', 'receiver_given_up', 'a receiver of notifications was given up: ' || :error,
           jsonb_build_object('agent_turn_id', f.agent_turn_id, 'receiver_id', f.receiver_id)
    FROM failed f WHERE f.status = 'given_up'
)
SELECT EXISTS (SELECT FROM failed f WHERE f.status = 'given_up') AS given_up;

-- name: list_receivers :many
-- The receivers that a turn has, without their secrets; those that were removed are none.
SELECT c.receiver_id, c.url, c.status FROM state.push_configs c
WHERE c.agent_turn_id = :agent_turn_id AND c.project_id = :project_id AND c.status <> 'removed' ORDER BY c.receiver_id;
