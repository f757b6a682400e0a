-- What goes on in a project, and a turn in all its parts, for the people who watch (protocol §14). Reads only.

-- name: look_at_live_turns :one
-- Live turns of a project by state, and a page of them: those that stand still first, then those that wait for people,
-- then the newest. Of 10,000 in hand and 10,000 queued ones at most; of one channel, agent, profile, state or turn if
-- that is given.
WITH
live AS MATERIALIZED (
    SELECT i.project_id, i.agent_turn_id, i.agent_id, i.channel_id, i.correlation_id, i.created_at,
           i.payload, i.status AS inbox_status,
           CASE WHEN h.status = 'dispatched' AND i.retry_count > 0 THEN i.defer_reason END AS defer_reason,
           i.retry_count, h.status, h.started_at, h.updated_at AS since, h.step_count, h.step_attempt, h.model_failures,
           h.restart_count, h.waiting_tool_count, h.resume_deadline, h.profile_box_id, NULL AS queued_because
    FROM (SELECT x.* FROM state.agent_state_head x
          WHERE x.project_id COLLATE "C" = :project_id AND x.output_box_id IS NOT NULL AND x.agent_id >= ''
            AND (:agent_turn_id::text IS NULL OR x.active_agent_turn_id = :agent_turn_id) LIMIT 10000) h
    CROSS JOIN LATERAL (
        SELECT y.* FROM state.agent_inbox y WHERE y.inbox_id = h.active_inbox_id
          AND y.project_id = :project_id {by_key}) i
    UNION ALL
    SELECT i.project_id, i.agent_turn_id, i.agent_id, i.channel_id, i.correlation_id, i.created_at,
           i.payload, i.status, NULL, 0, 'queued', NULL, i.created_at,
           0, 0, 0, 0, 0, NULL, state.as_uuid(i.payload ->> 'profile_box_id'),
           CASE WHEN q.paused_at_epoch IS NOT NULL THEN 'agent_paused' WHEN q.status <> 'idle' THEN 'agent_busy'
                WHEN EXISTS (SELECT FROM state.agent_state_head b WHERE b.output_box_id = {wanted_box(i)})
                THEN 'output_box_busy' END
    FROM (SELECT x.* FROM state.agent_inbox x
          WHERE x.project_id COLLATE "C" = :project_id AND x.archived_at IS NULL
            AND x.inbox_id >= '' AND x.next_retry_at = 'infinity'
            AND x.status = 'queued' AND (:agent_turn_id::text IS NULL
                                         OR x.agent_turn_id = :agent_turn_id) LIMIT 10000) i
    LEFT JOIN LATERAL (
        SELECT y.status, y.paused_at_epoch FROM state.agent_state_head y
        WHERE y.agent_id = i.agent_id AND y.project_id = i.project_id {by_key}) q ON true
),
usual AS MATERIALIZED (
    SELECT (percentile_cont(0.5) WITHIN GROUP (ORDER BY s.ms) / 1000)::float8 AS seconds
    FROM (SELECT x.agent_turn_id FROM (
              SELECT r.agent_turn_id, r.archived_at FROM state.agent_inbox r
              WHERE r.project_id COLLATE "C" = :project_id
              ORDER BY r.created_at DESC LIMIT 100) x
          WHERE x.archived_at IS NOT NULL LIMIT 50) t
    CROSS JOIN LATERAL (
        SELECT state.as_count(y.metadata #>> '{timing,step_ms}') AS ms FROM state.agent_steps y
        WHERE y.agent_turn_id = t.agent_turn_id AND y.project_id = :project_id LIMIT 20) s
),
questions AS MATERIALIZED (
    SELECT DISTINCT x.agent_turn_id FROM state.interrupts x
    WHERE x.project_id COLLATE "C" = :project_id AND x.status = 'open'
      AND x.reason <> 'client_tool'
),
judged AS MATERIALIZED (
    SELECT l.*, l.status = 'suspended' AND l.agent_turn_id IN (SELECT q.agent_turn_id FROM questions q) AS asks_people,
           CASE l.status
               WHEN 'queued' THEN CASE WHEN l.queued_because IS NULL AND l.since < now() - make_interval(
                   secs => :patience::float8) THEN 'not_leased' END
               WHEN 'dispatched' THEN CASE WHEN l.since < now() - make_interval(secs => :patience::float8)
                                                THEN 'not_begun' END
               WHEN 'running' THEN CASE WHEN l.since < now() - make_interval(
                   secs => greatest(2 * :patience::float8, 10 * coalesce((SELECT u.seconds FROM usual u), 0)))
                                             THEN 'slow_step' END
               WHEN 'suspended' THEN CASE WHEN l.resume_deadline < now() - make_interval(secs => :patience::float8)
                                               THEN 'overdue' END
           END AS stalled
    FROM live l
    WHERE :channel_id::text IS NULL OR l.channel_id = :channel_id
),
counted AS (
    SELECT count(*) AS total, count(*) FILTER (WHERE j.status = 'queued') AS queued,
           count(*) FILTER (WHERE j.status = 'dispatched') AS dispatched,
           count(*) FILTER (WHERE j.status = 'running') AS running,
           count(*) FILTER (WHERE j.status = 'suspended') AS suspended,
           count(*) FILTER (WHERE j.asks_people) AS asking, count(*) FILTER (WHERE j.stalled IS NOT NULL) AS stalled
    FROM judged j
),
page AS (
    SELECT j.*, row_number() OVER (ORDER BY j.stalled IS NULL, NOT j.asks_people, j.created_at DESC,
                                            j.agent_turn_id) AS place
    FROM judged j
    WHERE (:agent_id::text IS NULL OR j.agent_id = :agent_id)
      AND CASE :state::text WHEN 'stalled' THEN j.stalled IS NOT NULL
               WHEN 'people' THEN j.asks_people ELSE j.status = coalesce(:state, j.status) END
      AND (:profile_name::text IS NULL OR j.profile_box_id IN (
          SELECT d.profile_box_id FROM (SELECT DISTINCT k.profile_box_id FROM judged k) d
          CROSS JOIN LATERAL {profile_in_box(d.profile_box_id)} f WHERE lower(f.name) = lower(:profile_name)))
    ORDER BY place LIMIT :row_limit::int OFFSET :row_offset::int
)
SELECT c.*, now() AS seen_at, (SELECT u.seconds FROM usual u) AS usual_seconds, (
    SELECT coalesce(jsonb_agg(to_jsonb(x) ORDER BY x.place), '[]') FROM (
        SELECT g.place, g.agent_turn_id, g.agent_id, g.channel_id, g.correlation_id,
               g.payload ->> 'conversation_id' AS conversation_id, g.status,
               g.inbox_status, g.defer_reason, g.retry_count, g.created_at, g.started_at, g.since,
               g.step_count AS steps, g.step_attempt, g.model_failures, g.restart_count,
               g.resume_deadline, g.queued_because, {asked_of(g)} AS asked, g.asks_people, g.stalled,
               f.name AS profile_name,
               coalesce(u.model, g.payload #>> '{runtime_config,model}', f.model) AS model, u.tokens,
               u.cost, n.parent_turn_id, coalesce(n.stopping_at IS NOT NULL AND NOT n.ended, false) AS stopping,
               CASE g.stalled WHEN 'slow_step' THEN {is_unserved(g.agent_id)}
                    WHEN 'not_begun' THEN {is_unserved(g.agent_id)} ELSE false END AS unserved,
               CASE g.status WHEN 'suspended' THEN (
                   SELECT jsonb_agg(to_jsonb(k) ORDER BY k.created_at, k.tool_call_id) FROM (
                       SELECT w.tool_call_id, w.tool_name, w.created_at,
                              coalesce(w.deadline, g.resume_deadline) AS deadline, w.wait_status, b.tasks, b.tasks_done,
                              b.only_turn_id, {question_of_call(w)} AS question_id
                       FROM state.turn_waiting_tools w
                       CROSS JOIN LATERAL {batches_of_call(g.agent_turn_id, w.tool_call_id)} b
                       WHERE w.agent_turn_id = g.agent_turn_id AND w.project_id = :project_id
                         AND w.wait_status IN ('waiting', 'received')
                       ORDER BY w.created_at, w.tool_call_id LIMIT 5) k) END AS calls,
               g.waiting_tool_count AS open_calls
        FROM page g
        LEFT JOIN LATERAL {profile_in_box(g.profile_box_id)} f ON true
        LEFT JOIN state.turn_nodes n ON n.agent_turn_id = g.agent_turn_id AND n.project_id = :project_id
        CROSS JOIN LATERAL {use_of_turn(g.agent_turn_id)} u) x) AS turns
FROM counted c;

-- name: page_turns_with_use :many
-- variant: page_turns_with_use_of_agent, without any_agent
-- variant: page_turns_with_use_of_channel, without any_channel
-- As page_turns, in a state or `ended` if that is given, with what each turn used.
SELECT g.agent_turn_id, g.agent_id, g.channel_id, g.created_at, g.correlation_id,
       g.payload ->> 'conversation_id' AS conversation_id, g.payload ->> 'end_user' AS end_user, g.status,
       g.started_at, g.ended_at, g.error_code, {asked_of(g)} AS asked, u.steps, u.tokens, u.cost, u.model FROM (
    SELECT i.project_id, i.agent_turn_id, i.agent_id, i.channel_id, i.created_at, i.correlation_id,
           i.payload, {turn_status} AS status,
           coalesce(o.started_at, h.started_at) AS started_at, o.ended_at, o.error_code
    FROM state.agent_inbox i
    LEFT JOIN LATERAL (SELECT x.* FROM state.turn_outcomes x
                       WHERE x.agent_turn_id = i.agent_turn_id AND x.project_id = i.project_id {by_key}) o ON true
    LEFT JOIN LATERAL (
        SELECT x.status, x.started_at, x.active_agent_turn_id FROM state.agent_state_head x
        WHERE x.agent_id = i.agent_id AND x.project_id = i.project_id
          AND x.active_agent_turn_id = i.agent_turn_id {by_key}) h ON true
    WHERE i.project_id COLLATE "C" = :project_id AND i.message_type IN {turn_types}
-- only for any_channel
  AND (:channel_id::text IS NULL OR i.channel_id = :channel_id)
-- else
  AND i.channel_id COLLATE "C" = :channel_id AND i.agent_turn_id >= ''
-- end
-- only for any_agent
  AND (:agent_id::text IS NULL OR i.agent_id = :agent_id)
-- else
  AND i.agent_id COLLATE "C" = :agent_id AND i.agent_turn_id >= ''
-- end
      AND (:status::text IS NULL OR CASE :status WHEN 'ended' THEN o.agent_turn_id IS NOT NULL
                                         ELSE o.status = :status END)
      AND i.created_at <= coalesce(:before_at::timestamptz, 'infinity')
      AND (:before_at::timestamptz IS NULL OR i.created_at < :before_at
           OR (i.created_at = :before_at AND i.agent_turn_id < :before_id))
    ORDER BY i.created_at DESC, i.agent_turn_id DESC LIMIT :row_limit::int) g
CROSS JOIN LATERAL {use_of_turn(g.agent_turn_id)} u
ORDER BY g.created_at DESC, g.agent_turn_id DESC;

-- name: search_turns :many
-- Turns whose id begins with a text, among the last 10,000, and those that a caller has named so; of one channel if
-- that is given.
SELECT x.agent_turn_id, x.agent_id, x.correlation_id, x.created_at, {asked_of(x)} AS asked FROM (
    SELECT i.project_id, i.agent_turn_id, i.agent_id, i.correlation_id, i.created_at, i.payload FROM state.agent_inbox i
    WHERE i.correlation_id = ANY (:correlations::text[]) AND i.project_id = :project_id
      AND i.message_type IN {turn_types}
      AND (:channel_id::text IS NULL OR i.channel_id = :channel_id)
    UNION
    SELECT r.project_id, r.agent_turn_id, r.agent_id, r.correlation_id, r.created_at, r.payload FROM (
        SELECT i.project_id, i.agent_turn_id, i.agent_id, i.correlation_id, i.created_at, i.channel_id, i.payload
        FROM state.agent_inbox i
        WHERE i.project_id COLLATE "C" = :project_id AND i.message_type IN {turn_types}
        ORDER BY i.created_at DESC LIMIT 10000) r
    WHERE starts_with(r.agent_turn_id, :beginning) AND (:channel_id::text IS NULL OR r.channel_id = :channel_id)) x
ORDER BY x.created_at DESC LIMIT :row_limit::int;

-- name: list_turn_calls :many
-- The calls that a turn has sent, in order: what each waits or waited for, its result, and the turns that it asked.
SELECT w.tool_call_id, w.tool_name, w.step_id, w.wait_status, w.created_at, w.received_at,
       w.applied_at, w.updated_at, w.deadline,
       coalesce(w.call_card_id, w.tool_call_id || '-call') AS call_card_id, w.tool_result_card_id,
       b.tasks, b.tasks_done, b.only_turn_id, r.status AS result_status, r.error_code, {recorded_under(w)} AS recorded
FROM (SELECT x.* FROM state.turn_waiting_tools x WHERE x.agent_turn_id = :agent_turn_id AND x.project_id = :project_id
      ORDER BY x.created_at, x.tool_call_id LIMIT :row_limit::int) w
CROSS JOIN LATERAL {batches_of_call(w.agent_turn_id, w.tool_call_id)} b
LEFT JOIN LATERAL (
    SELECT c.content ->> 'status' AS status, c.content #>> '{error,code}' AS error_code FROM public.cards c
    WHERE c.card_id = w.tool_result_card_id AND c.tenant_id = :project_id LIMIT 1) r ON true
ORDER BY w.created_at, w.tool_call_id;

-- name: list_turn_inputs :many
-- The cards that a turn was given in its context box, in order: the last so many.
SELECT x.card_id, x.content, x.tool_calls, x.tool_call_id, x.metadata FROM (
    SELECT c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata, p.position
    FROM public.box_cards p JOIN public.cards c ON c.card_id = p.card_id
        AND c.tenant_id = :project_id AND state.is_alive(c.expires_at, c.deleted_at)
    WHERE p.box_id = :box_id::text::uuid
      AND c.metadata ->> 'type' NOT IN ('sys.profile', 'sys.tools', 'sys.rendered_prompt', 'task.runtime_config')
    ORDER BY p.position DESC LIMIT :row_limit::int) x
ORDER BY x.position;

-- name: list_cards_of_steps :many
-- The cards that these steps of a turn made, their calls as they were sent (a person may have edited one) with the
-- results, what was said to the turn, and some others.
SELECT c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata
FROM (
    SELECT n.card_id FROM state.agent_steps s
    CROSS JOIN LATERAL jsonb_array_elements_text(coalesce(s.metadata -> 'new_card_ids', '[]')) n (card_id)
    WHERE s.agent_turn_id = :agent_turn_id AND s.project_id = :project_id AND s.step_id = ANY (:step_ids::text[])
    UNION
    SELECT unnest(ARRAY[w.call_card_id, w.tool_result_card_id]) FROM state.turn_waiting_tools w
    WHERE w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id AND w.step_id = ANY (:step_ids::text[])
    UNION
    SELECT t.steer_id FROM state.steers t WHERE t.agent_turn_id = :agent_turn_id AND t.project_id = :project_id
    UNION
    SELECT unnest(:card_ids::text[])) x
CROSS JOIN LATERAL (
    SELECT k.card_id, k.content, k.tool_calls, k.tool_call_id, k.metadata FROM public.cards k
    WHERE k.card_id = x.card_id AND k.tenant_id = :project_id AND state.is_alive(k.expires_at, k.deleted_at) LIMIT 1) c;

-- name: describe_place :one
-- Where a turn is in its tree, who asked for it, and which profile and version it runs with.
SELECT n.root_turn_id, n.parent_turn_id, coalesce(n.stopping_at IS NOT NULL AND NOT n.ended, false) AS stopping,
       n.stop_reason, (
           SELECT count(*) FROM (SELECT FROM state.turn_nodes c
                                 WHERE c.parent_turn_id = i.agent_turn_id LIMIT 10000) k) AS children,
       i.context_headers ->> 'CG-Sender' AS requester, f.name AS profile_name, f.model,
       i.payload ->> 'profile_box_id' AS profile_box_id, i.payload #>> '{ui_action,tool_name}' AS ui_action
FROM state.agent_inbox i
LEFT JOIN state.turn_nodes n ON n.agent_turn_id = i.agent_turn_id AND n.project_id = i.project_id
LEFT JOIN LATERAL {profile_in_box(state.as_uuid(i.payload ->> 'profile_box_id'))} f ON true
WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id AND i.message_type IN {turn_types} LIMIT 1;
