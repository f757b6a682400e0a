-- Schedules and their firings (protocol §20).

-- name: read_clock :one
-- The ledger's clock, by which schedules go.
SELECT clock_timestamp() AS now;

-- name: put_schedule :one
-- Puts a schedule; the same again replaces what it was.
SELECT p.verdict, p.created
FROM state.put_schedule(:project_id, :channel_id, :schedule_id, :settings::jsonb, :timing::jsonb,
                        :anchor_at::timestamptz, :next_at::timestamptz, :pauses::boolean, :caller, :operates::boolean,
                        :most::int) p;

-- name: put_wake :one
-- Puts the schedule of a call of wake_me: as of the function.
SELECT w.verdict, w.schedule, w.fires_at
FROM state.put_wake(:project_id, :tool_call_id, :at::timestamptz, :in_seconds::float8, :instruction, :depth_limit::int,
                    :most::int) w;

-- name: find_schedule :opt
-- A schedule of a channel, or of any.
SELECT s.project_id, s.channel_id, s.schedule_id, s.owner, s.owner_operates, s.settings || s.timing AS settings,
       s.anchor_at, s.next_at, s.revision, s.paused_at, s.paused_because, s.waker_turn_id, s.wake,
       s.created_at, s.updated_at,
       clock_timestamp() AS read_at
FROM resource.schedules s
WHERE s.project_id = :project_id AND s.schedule_id = :schedule_id
  AND (:channel_id::text IS NULL OR s.channel_id = :channel_id);

-- name: list_schedules :many
-- The schedules of a channel, or of all channels, by their ids, each with its last firing; no wake that
-- has fired.
SELECT s.project_id, s.channel_id, s.schedule_id, s.owner, s.owner_operates, s.settings || s.timing AS settings,
       s.anchor_at, s.next_at, s.revision, s.paused_at, s.paused_because, s.waker_turn_id, s.wake,
       s.created_at, s.updated_at,
       clock_timestamp() AS read_at, to_jsonb(f) AS last
FROM resource.schedules s
LEFT JOIN LATERAL (
    SELECT x.nominal_at, x.fired_at, x.agent_turn_id, x.code, x.error, x.triggered_by FROM state.schedule_firings x
    WHERE x.project_id = s.project_id AND x.schedule_id = s.schedule_id ORDER BY x.nominal_at DESC LIMIT 1) f ON true
WHERE s.project_id = :project_id AND (:channel_id::text IS NULL OR s.channel_id = :channel_id)
  AND s.schedule_id > :after AND (s.waker_turn_id IS NULL OR s.next_at IS NOT NULL)
ORDER BY s.schedule_id LIMIT :row_limit::int;

-- name: list_firings :many
-- The last firings of a schedule, newest first.
SELECT f.nominal_at, f.fired_at, f.agent_turn_id, f.code, f.error, f.triggered_by FROM state.schedule_firings f
WHERE f.project_id = :project_id AND f.schedule_id = :schedule_id ORDER BY f.nominal_at DESC LIMIT :row_limit::int;

-- name: list_due_schedules :many
-- Schedules whose time has come, or comes within `ahead_seconds`, the longest due first, at most `share` of a project;
-- and those whose next time was set by a clock that has been set back by more than a minute since.
WITH due AS MATERIALIZED (
    SELECT s.project_id, s.schedule_id, row_number() OVER (PARTITION BY s.project_id ORDER BY s.next_at) AS place
    FROM resource.schedules s
    WHERE s.paused_at IS NULL AND s.next_at < clock_timestamp() + make_interval(secs => :ahead_seconds::float8)
    UNION ALL
    SELECT s.project_id, s.schedule_id, 1 FROM resource.schedules s
    WHERE s.paused_at IS NULL AND s.next_at IS NOT NULL AND s.looked_at > clock_timestamp() + interval '1 minute'
)
SELECT s.project_id, s.channel_id, s.schedule_id, s.owner, s.owner_operates, s.settings || s.timing AS settings,
       s.anchor_at, s.next_at, s.revision, s.paused_at, s.paused_because, s.waker_turn_id, s.wake,
       s.created_at, s.updated_at,
       clock_timestamp() AS read_at
FROM (SELECT DISTINCT d.project_id, d.schedule_id FROM due d WHERE d.place <= :share::int) d
JOIN resource.schedules s ON s.project_id = d.project_id AND s.schedule_id = d.schedule_id
ORDER BY s.next_at LIMIT :row_limit::int;

-- name: fire_schedule :one
-- Fires a schedule, or moves it past a time: as of the function.
SELECT e.fired, {enqueued(e)}
FROM state.fire_schedule(:project_id, :schedule_id, :revision::bigint, :due_at::timestamptz, :nominal_at::timestamptz,
                         :following_at::timestamptz, :refused::text, :error::text, :firing_id, :triggered_by::text,
                         :request::jsonb, :claimed_targets::text[]) e;

-- name: pause_schedule :opt
-- Fires a schedule no more; no row: it was changed since it was read.
UPDATE resource.schedules s SET paused_at = coalesce(s.paused_at, clock_timestamp()),
    paused_because = coalesce(s.paused_because, 'paused'), revision = s.revision + 1, updated_at = now()
WHERE s.project_id = :project_id AND s.schedule_id = :schedule_id AND s.revision = :revision::bigint
RETURNING s.schedule_id;

-- name: resume_schedule :opt
-- Lets a paused schedule fire from its next time on; no row: it was changed since it was read.
UPDATE resource.schedules s SET paused_at = NULL, paused_because = NULL, next_at = :next_at::timestamptz,
    looked_at = clock_timestamp(), revision = s.revision + 1, updated_at = now()
WHERE s.project_id = :project_id AND s.schedule_id = :schedule_id AND s.revision = :revision::bigint
  AND s.paused_at IS NOT NULL
RETURNING s.schedule_id;

-- name: remove_schedule :opt
-- Removes a schedule and its firings; no row: it was changed since it was read.
DELETE FROM resource.schedules s
WHERE s.project_id = :project_id AND s.schedule_id = :schedule_id AND s.revision = :revision::bigint
RETURNING s.schedule_id;

-- name: list_stuck_schedules :many
-- Schedules of all projects that cannot run, each with the reason: late (nobody fires it), or what a firing would be
-- refused with. Those that a caller has paused are left out.
SELECT x.project_id, x.schedule_id, x.reason FROM (
    SELECT s.project_id, s.schedule_id, CASE
        WHEN s.paused_because IN ('owner_revoked', 'schedule_invalid') THEN s.paused_because
        WHEN s.paused_at IS NOT NULL OR s.next_at IS NULL THEN NULL
        WHEN s.settings ? 'agent_id' AND a.agent_id IS NULL THEN 'unknown_agent'
        WHEN a.status NOT IN ('active', 'paused', 'dormant') THEN 'agent_inactive'
        WHEN a.status = 'paused' THEN 'agent_paused'
        WHEN s.settings ? 'profile_name' AND p.name IS NULL THEN 'unknown_profile'
        WHEN s.settings ? 'profile_name' AND p.settings -> 'instances' IS DISTINCT FROM 'true' THEN 'no_instances'
        WHEN s.next_at < clock_timestamp() - make_interval(secs => :late_seconds::float8) THEN 'late' END AS reason
    FROM resource.schedules s
    LEFT JOIN resource.project_agents a ON a.agent_id = s.settings ->> 'agent_id' AND a.project_id = s.project_id
    LEFT JOIN resource.profiles p ON lower(p.name) = lower(s.settings ->> 'profile_name')
        AND p.project_id = s.project_id) x
WHERE x.reason IS NOT NULL ORDER BY x.project_id, x.schedule_id LIMIT :row_limit::int;
