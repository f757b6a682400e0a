-- The audit's rules on schedules. Of a window: firings of turns enqueued in it, and those that made none.

-- name: firings_are_their_turns :many
-- Protocol §20: the turn of a firing has the correlation of its schedule, and its owner's or trigger's turn is of its
-- project.
SELECT jsonb_build_object('project_id', f.project_id, 'schedule_id', f.schedule_id,
                          'agent_turn_id', f.agent_turn_id) AS ids,
       CASE WHEN i.inbox_id IS NULL THEN 'there is no such turn' ELSE 'the turn is not of this schedule' END AS detail
FROM {of_turns_since(state.schedule_firings, agent_turn_id)} f
LEFT JOIN state.agent_inbox i ON i.agent_turn_id = f.agent_turn_id AND i.project_id = f.project_id
    AND i.message_type IN {turn_types}
WHERE f.agent_turn_id IS NOT NULL
  AND (i.inbox_id IS NULL OR NOT starts_with(i.correlation_id, 'schedule:' || f.schedule_id || '@'))
  AND (:project_id::text IS NULL OR f.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: scheduled_turns_are_fired :many
-- Protocol §20: a turn with the correlation of a schedule that is still there was made by one firing of it.
SELECT jsonb_build_object('project_id', i.project_id, 'schedule_id', s.schedule_id,
                          'agent_turn_id', i.agent_turn_id) AS ids,
       format('%s firings name the turn', count(f.firing_id)) AS detail
FROM {of_turns_since(state.agent_inbox, agent_turn_id)} i
JOIN resource.schedules s ON s.project_id = i.project_id
    AND s.schedule_id = split_part(substr(i.correlation_id, 10), '@', 1)
LEFT JOIN state.schedule_firings f ON f.agent_turn_id = i.agent_turn_id AND f.project_id = i.project_id
WHERE starts_with(i.correlation_id, 'schedule:') AND i.message_type = 'turn' AND i.created_at > s.created_at
  AND (:project_id::text IS NULL OR i.project_id = :project_id)
GROUP BY i.project_id, s.schedule_id, i.agent_turn_id HAVING count(f.firing_id) <> 1
ORDER BY ids LIMIT :row_limit::int;

-- name: schedules_fire_in_time :many
-- Protocol §20: a schedule that is not paused fires, or is moved past its time, soon after it.
SELECT jsonb_build_object('project_id', s.project_id, 'schedule_id', s.schedule_id) AS ids,
       'it is due, and nobody fires it' AS detail
FROM resource.schedules s
WHERE s.paused_at IS NULL AND s.next_at < now() - make_interval(secs => :grace_seconds::float8)
  AND (:project_id::text IS NULL OR s.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: wakes_go_on_from_their_turn :many
-- Protocol §20: a wake_me names a turn that is there, for whose agent and requester it is, and its turn is one deeper.
SELECT jsonb_build_object('project_id', s.project_id, 'schedule_id', s.schedule_id,
                          'agent_turn_id', s.waker_turn_id) AS ids,
       CASE WHEN w.inbox_id IS NULL THEN 'there is no such turn'
            WHEN w.agent_id <> s.settings ->> 'agent_id' THEN 'it wakes another agent'
            WHEN s.owner <> coalesce(w.context_headers ->> 'CG-Sender', '') THEN 'it wakes for another requester'
            ELSE 'its turn is not one deeper' END AS detail
FROM {of_turns_since(resource.schedules, waker_turn_id)} s
LEFT JOIN state.agent_inbox w ON w.agent_turn_id = s.waker_turn_id AND w.project_id = s.project_id
    AND w.message_type IN {turn_types}
LEFT JOIN state.schedule_firings f ON f.project_id = s.project_id AND f.schedule_id = s.schedule_id
    AND f.agent_turn_id IS NOT NULL AND f.triggered_by IS NULL
LEFT JOIN state.agent_inbox i ON i.agent_turn_id = f.agent_turn_id AND i.project_id = f.project_id
    AND i.message_type IN {turn_types}
WHERE s.waker_turn_id IS NOT NULL
  AND (w.inbox_id IS NULL OR w.agent_id <> s.settings ->> 'agent_id'
       OR s.owner <> coalesce(w.context_headers ->> 'CG-Sender', '')
       OR (i.inbox_id IS NOT NULL AND state.as_count(i.context_headers ->> 'CG-Recursion-Depth')
           <> state.as_count(w.context_headers ->> 'CG-Recursion-Depth') + 1))
  AND (:project_id::text IS NULL OR s.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;
