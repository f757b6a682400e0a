-- The audit's rules on inbox rows and on time limits. What the safety net does (protocol §8) may take :grace_seconds
-- beyond the net's own time, and is only checked where a worker of the target has signed on within :silent_seconds.

-- name: final_rows_are_archived :many
-- Protocol §4.4: final rows, and only they, are archived; a live row that is not queued has a time when it is due, and
-- one that no claim takes has none.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'inbox_id', i.inbox_id,
                          'agent_turn_id', i.agent_turn_id) AS ids,
       CASE WHEN (i.status IN ('consumed', 'skipped', 'error')) <> (i.archived_at IS NOT NULL)
            THEN format('it is %s and %s archived', i.status, CASE WHEN i.archived_at IS NULL THEN 'not' ELSE 'yet' END)
            ELSE format('a %s, it is %s and due at %s', i.message_type, i.status, i.next_retry_at) END AS detail
FROM state.agent_inbox i
WHERE ((i.status IN ('consumed', 'skipped', 'error')) <> (i.archived_at IS NOT NULL)
       OR (i.archived_at IS NULL AND i.status <> 'queued'
           AND (i.next_retry_at = 'infinity') <> (i.message_type IN {record_types})))
  AND (:since::timestamptz IS NULL OR i.created_at >= :since)
  AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: retries_are_bounded :many
-- Protocol §4.4: a row is deferred with a reason, for seconds; only reports wait for their turn or their card, and for
-- that at most three times (§7.5).
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'inbox_id', i.inbox_id,
                          'tool_call_id', i.correlation_id) AS ids,
       format('a %s in status %s after %s retries, due in %s s', i.message_type, i.status, i.retry_count,
              round(extract(epoch FROM i.next_retry_at - now()))) AS detail
FROM state.agent_inbox i
WHERE (i.retry_count < 0 OR (i.retry_count > 0 AND i.defer_reason IS NULL)
       OR (i.defer_reason = 'card_not_visible' AND i.retry_count > 3)
       OR (i.defer_reason IN ('card_not_visible', 'turn_running') AND i.message_type NOT IN {report_types})
       OR (i.status = 'deferred' AND (i.defer_reason IS NULL OR i.next_retry_at > now() + interval '1 minute')))
  AND (:since::timestamptz IS NULL OR i.created_at >= :since)
  AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: settings_without_text :many
-- Protocol §4.4: the row of a turn has no instructions and no choices: they are on the card that its settings name.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'agent_turn_id', i.agent_turn_id,
                          'inbox_id', i.inbox_id) AS ids,
       CASE WHEN i.payload -> 'runtime_config' ?| '{instructions,choices}' THEN 'instructions or choices are in the row'
            ELSE 'the settings name a card that is none of theirs' END AS detail
FROM state.agent_inbox i
WHERE i.message_type IN {turn_types} AND i.payload -> 'runtime_config' ?| '{instructions,choices,card_id}'
  AND (i.payload -> 'runtime_config' ?| '{instructions,choices}' OR EXISTS (
       SELECT FROM public.cards c WHERE c.card_id = i.payload #>> '{runtime_config,card_id}'
         AND (c.tenant_id <> i.project_id OR c.metadata ->> 'type' IS DISTINCT FROM 'task.runtime_config')))
  AND (:since::timestamptz IS NULL OR i.created_at >= :since)
  AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: stops_came_true :many
-- Protocol §6 stop: a consumed stop has ended its turn: the outcome is canceled, with the code stopped.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'agent_turn_id', i.agent_turn_id,
                          'inbox_id', i.inbox_id) AS ids,
       'the stop is consumed, and the turn '
           || coalesce(format('ended as %s, %s', o.status, coalesce(o.error_code, 'without a code')),
                                                         'has no outcome') AS detail
FROM state.agent_inbox i LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id
WHERE i.message_type = 'stop' AND i.status = 'consumed'
  AND (o.status, o.error_code) IS DISTINCT FROM ('canceled', 'stopped')
  AND (:since::timestamptz IS NULL OR i.created_at >= :since)
  AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: claims_are_short :many
-- Protocol §8 claims: no row is processing for longer than :claim_seconds, and the grace.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'inbox_id', i.inbox_id,
                          'agent_turn_id', i.agent_turn_id) AS ids,
       coalesce(format('claimed %s s ago, and nothing came of it', round(extract(epoch FROM now() - i.processed_at))),
                'processing, and nobody claimed it') AS detail
FROM state.agent_inbox i JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
WHERE i.archived_at IS NULL AND i.status = 'processing' AND i.next_retry_at < 'infinity'
  AND coalesce(i.processed_at, i.created_at) < now() - make_interval(
      secs => :claim_seconds::float8 + :grace_seconds::float8)
  AND EXISTS (SELECT FROM state.workers w WHERE w.worker_target = a.worker_target
              AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))
  AND (:project_id::text IS NULL OR i.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: due_rows_are_taken :many
-- Protocol §8 doorbell: a row that is due is taken, at the latest by the safety net.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'inbox_id', i.inbox_id,
                          'agent_turn_id', i.agent_turn_id) AS ids,
       format('a %s, %s, that nobody has taken for %s s', i.message_type, i.status,
              round(extract(epoch FROM now() - i.next_retry_at))) AS detail
FROM state.agent_inbox i JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
WHERE i.archived_at IS NULL AND i.status IN ('pending', 'deferred')
  AND i.next_retry_at < now() - make_interval(secs => :grace_seconds::float8)
  AND EXISTS (SELECT FROM state.workers w WHERE w.worker_target = a.worker_target
              AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))
  AND (:project_id::text IS NULL OR i.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: rows_are_of_somebody :many
-- Protocol §8 orphans: no live row is for an agent that no roster has, and no due row of a turn is of one that nobody
-- enqueued.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'inbox_id', i.inbox_id,
                          'agent_turn_id', i.agent_turn_id) AS ids,
       format('a %s, %s for %s s, ', i.message_type, i.status, round(extract(epoch FROM now() - i.created_at)))
           || CASE WHEN a.agent_id IS NULL THEN 'for an agent that no roster has'
                   ELSE 'of a turn that nobody enqueued' END AS detail
FROM state.agent_inbox i LEFT JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
WHERE i.archived_at IS NULL AND i.created_at < now() - make_interval(secs => :grace_seconds::float8)
  AND (a.agent_id IS NULL OR (
       i.message_type IN {turn_types} AND i.status <> 'queued'
       AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = i.agent_turn_id)
       AND NOT EXISTS (SELECT FROM state.agent_state_head h
                       WHERE h.agent_id = i.agent_id AND h.project_id = i.project_id
                       AND h.active_agent_turn_id = i.agent_turn_id)))
  AND (:project_id::text IS NULL OR i.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: deadlines_are_kept :many
-- Protocol §8 suspended: a turn is woken when its resume deadline has passed, or with the reports that are there. Null
-- is never past.
SELECT jsonb_build_object('project_id', h.project_id, 'agent_id', h.agent_id,
                          'agent_turn_id', h.active_agent_turn_id) AS ids,
       CASE WHEN h.resume_deadline IS NULL THEN 'asleep, with a report and without a deadline'
            ELSE format('asleep, and its deadline was %s s ago',
                        round(extract(epoch FROM now() - h.resume_deadline))) END AS detail
FROM state.agent_state_head h JOIN resource.project_agents a ON a.agent_id = h.agent_id AND a.project_id = h.project_id
WHERE h.status = 'suspended'
  AND coalesce(h.resume_deadline, h.updated_at) < now() - make_interval(secs => :grace_seconds::float8)
  AND (h.resume_deadline IS NOT NULL OR EXISTS (
       SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = h.active_agent_turn_id AND i.project_id = h.project_id
         AND i.message_type IN {report_types} AND i.archived_at IS NULL
         AND i.created_at < now() - make_interval(secs => :grace_seconds::float8)))
  AND EXISTS (SELECT FROM state.workers w WHERE w.worker_target = a.worker_target
              AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))
  AND (:project_id::text IS NULL OR h.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: stops_are_obeyed :many
-- Protocol §8 stop: a turn that was asked to stop ends in time.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'agent_turn_id', i.agent_turn_id,
                          'inbox_id', i.inbox_id) AS ids,
       format('asked to stop %s s ago, and still %s', round(extract(epoch FROM now() - i.created_at)),
              h.status) AS detail
FROM state.agent_inbox i
JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
    AND h.active_agent_turn_id = i.agent_turn_id
JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
WHERE i.archived_at IS NULL
  AND i.message_type = 'stop' AND i.created_at < now() - make_interval(secs => :grace_seconds::float8)
  AND EXISTS (SELECT FROM state.workers w WHERE w.worker_target = a.worker_target
              AND w.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))
  AND (:project_id::text IS NULL OR i.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;
