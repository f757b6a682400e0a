-- The audit's rule on receivers of push notifications. They are few, and each is looked up by its turn.
-- Of a window: receivers of turns enqueued in it, or in hand now.

-- name: receivers_go_with_their_turn :many
-- Protocol §17.3: a receiver has a turn, is notified of its end, and until then is due no longer than
-- :grace_seconds without being tried.
SELECT jsonb_build_object('project_id', p.project_id, 'agent_turn_id', p.agent_turn_id,
                          'receiver_id', p.receiver_id) AS ids,
       CASE WHEN t.ended IS NULL THEN 'there is no such turn'
            WHEN p.status = 'done' THEN 'it was not notified of the end of the turn'
            ELSE 'it is due, and nobody sends it' END AS detail
FROM {of_turns_since(state.push_configs, agent_turn_id)} p
LEFT JOIN LATERAL (
    SELECT {told_state(i)} AS state, EXISTS (SELECT FROM state.turn_outcomes o
                                             WHERE o.agent_turn_id = i.agent_turn_id) AS ended
    FROM state.agent_inbox i
    WHERE i.agent_turn_id = p.agent_turn_id AND i.project_id = p.project_id
      AND i.message_type IN {turn_types} LIMIT 1) t ON true
WHERE (t.ended IS NULL OR (p.status = 'done' AND t.ended AND p.told_state IS DISTINCT FROM t.state)
       OR (p.status = 'active' AND t.ended AND p.next_at < now() - make_interval(secs => :grace_seconds::float8)))
  AND (:project_id::text IS NULL OR p.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: webhooks_get_each_end :many
-- Protocol §17.6: the end of a turn that has a webhook is an event, and an event is due no longer than :grace_seconds
-- without being tried.
SELECT jsonb_strip_nulls(jsonb_build_object('project_id', w.project_id, 'agent_turn_id', w.agent_turn_id,
                                            'webhook_id', w.webhook_id)) AS ids,
       CASE WHEN w.due_since < now() - make_interval(secs => :grace_seconds::float8)
                 THEN 'an event is due, and nobody sends it' ELSE 'the end of the turn is no event' END AS detail
FROM {of_turns_since(state.webhook_configs, agent_turn_id)} w
WHERE (w.due_since < now() - make_interval(secs => :grace_seconds::float8)
       OR (w.status <> 'gone' AND 'turn.ended' = ANY (w.events) AND NOT w.has_end
           AND EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = w.agent_turn_id)))
  AND (:project_id::text IS NULL OR w.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: deletions_go_on :many
-- Protocol §6 deletions: a deletion that is not done is worked on, and of one that is done nothing is noted.
SELECT jsonb_build_object('project_id', d.project_id, 'deletion_id', d.deletion_id) AS ids,
       CASE d.status WHEN 'running' THEN format('no bridge has worked on it since %s', d.advanced_at)
            ELSE 'it is done, and what it was of is still noted' END AS detail
FROM state.deletions d
WHERE (:project_id::text IS NULL OR d.project_id = :project_id)
  AND CASE d.status WHEN 'running' THEN d.advanced_at < now() - interval '1 hour'
      ELSE EXISTS (SELECT FROM state.deletion_items i WHERE i.deletion_id = d.deletion_id) END
ORDER BY ids LIMIT :row_limit::int;
