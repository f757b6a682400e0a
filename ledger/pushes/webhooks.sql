-- Webhooks and the events that are sent to them (protocol §17.6).

-- name: put_webhook :one
-- Sets a webhook; the same again has what is given now.
SELECT w.verdict FROM state.put_webhook(:project_id, :channel_id, :webhook_id, :profile_name, :agent_turn_id, :url,
                                        :secret, :events::text[], :created_by, :most::int,
                                        :most_open::bigint) w;

-- name: remove_webhook :one
-- Removes a webhook of this name, else those of a turn of this id, and what was still to be sent to them; says whether
-- there was one.
WITH removed AS (
    DELETE FROM state.webhooks w USING (
        SELECT x.webhook_id FROM state.webhooks x WHERE x.project_id = :project_id AND x.webhook_id = :webhook_id
        UNION ALL
        SELECT x.webhook_id FROM state.webhooks x
        WHERE x.project_id = :project_id AND x.agent_turn_id = :webhook_id
          AND NOT EXISTS (SELECT FROM state.webhooks n
                          WHERE n.project_id = :project_id AND n.webhook_id = :webhook_id)) named
    WHERE w.project_id = :project_id AND w.webhook_id = named.webhook_id RETURNING w.webhook_id
), events AS (
    DELETE FROM state.webhook_events e USING removed r
    WHERE e.project_id = :project_id AND e.webhook_id = r.webhook_id AND e.status = 'active'
)
SELECT EXISTS (SELECT FROM removed) AS found;

-- name: list_webhooks :many
-- The webhooks of the project and its profiles, without secrets, each with what waits and its last error.
SELECT w.webhook_id, w.profile_name, w.url, w.events, w.status, w.created_by, w.updated_at, w.waiting, w.last_error
FROM state.webhook_configs w
WHERE w.project_id = :project_id AND w.agent_turn_id IS NULL ORDER BY w.webhook_id;

-- name: claim_events :many
-- Takes events that are due, the longest due first, for `hold_seconds`: after that they are due again. At most `share`
-- of a project, and none of projects that have enough in hand.
WITH due AS MATERIALIZED (
    SELECT e.event_id, e.next_at, row_number() OVER (PARTITION BY e.project_id ORDER BY e.next_at) AS place
    FROM state.webhook_events e
    WHERE e.status = 'active' AND e.next_at <= now() AND e.project_id <> ALL (:busy_projects::text[])
), free AS MATERIALIZED (
    SELECT e.event_id FROM due d JOIN state.webhook_events e ON e.event_id = d.event_id
    WHERE d.place <= :share::int AND e.status = 'active' AND e.next_at <= now()
    ORDER BY d.next_at LIMIT :row_limit::int FOR UPDATE OF e SKIP LOCKED
)
UPDATE state.webhook_events e SET next_at = now() + make_interval(secs => :hold_seconds::float8),
    attempts = e.attempts + 1
FROM free f, state.webhooks w
WHERE e.event_id = f.event_id AND w.project_id = e.project_id AND w.webhook_id = e.webhook_id
RETURNING e.event_id, e.project_id, e.webhook_id, e.agent_turn_id, e.type, e.data, e.happened_at, e.attempts, w.url,
          w.secret;

-- name: record_event_sent :one
-- A receiver has acknowledged an event.
WITH sent AS (
    UPDATE state.webhook_events e SET status = 'done', last_error = NULL
    WHERE e.event_id = :event_id AND e.status = 'active' RETURNING e.event_id
)
SELECT EXISTS (SELECT FROM sent) AS recorded;

-- name: fail_event :one
-- A receiver has not acknowledged an event: it is sent again after a pause that grows, or, after `give_up_seconds` of
-- this, no more, which is recorded as a rejection. After 410 the webhook gets nothing more until it is put again.
WITH failed AS (
    UPDATE state.webhook_events e SET last_error = :error, next_at = now() + make_interval(
        secs => least(:longest_pause::float8, power(2, least(e.attempts, 20) - 1))),
        status = CASE WHEN :gone::boolean OR e.happened_at < now() - make_interval(secs => :give_up_seconds::float8)
                           THEN 'given_up' ELSE e.status END
    WHERE e.event_id = :event_id AND e.status = 'active'
    RETURNING e.project_id, e.event_id, e.webhook_id, e.agent_turn_id, e.status
), closed AS (
    UPDATE state.webhooks w SET status = 'gone', updated_at = now() FROM failed f
    WHERE :gone AND w.project_id = f.project_id AND w.webhook_id = f.webhook_id
), recorded AS (
    INSERT INTO state.rejections (project_id, source, error_code, error, ids)
    SELECT f.project_id, 'push', 'receiver_given_up', 'an event for a webhook was given up: ' || :error,
           jsonb_strip_nulls(jsonb_build_object('webhook_id', f.webhook_id, 'event_id', f.event_id,
                                                'agent_turn_id', f.agent_turn_id))
    FROM failed f WHERE f.status = 'given_up'
)
SELECT EXISTS (SELECT FROM failed f WHERE f.status = 'given_up') AS given_up;
