-- The audit's rules on turns that run others again. Few turns do.

-- name: reruns_name_a_turn_that_was_over :many
-- Protocol §6 rerun: a rerun is of a turn of its agent and channel that was over before it, from one of its steps.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_turn_id', i.agent_turn_id,
                          'other_agent_turn_id', b.agent_turn_id) AS ids,
       CASE WHEN o.agent_turn_id IS NULL OR o.ended_at > i.created_at THEN 'the turn that it runs again was not over'
            WHEN (b.agent_id, b.channel_id) IS DISTINCT FROM (i.agent_id, i.channel_id)
                 THEN 'it runs a turn of another agent or channel again'
            ELSE 'the turn has no such step' END AS detail
FROM state.agent_inbox i
JOIN state.agent_inbox b ON b.agent_turn_id = i.payload -> 'rerun' ->> 'of'
    AND b.project_id = i.project_id AND b.message_type IN {turn_types}
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = b.agent_turn_id AND o.project_id = b.project_id
WHERE i.payload ? 'rerun' AND i.message_type IN {turn_types}
  AND (:since::timestamptz IS NULL OR i.created_at >= :since)
  AND (:project_id::text IS NULL OR i.project_id = :project_id)
  AND (o.agent_turn_id IS NULL OR o.ended_at > i.created_at
       OR (b.agent_id, b.channel_id) IS DISTINCT FROM (i.agent_id, i.channel_id)
       OR coalesce(state.as_count(i.payload -> 'rerun' ->> 'from_step'), 0) NOT BETWEEN 1 AND 1 + (
           SELECT count(*) FROM state.agent_steps s
           WHERE s.agent_turn_id = b.agent_turn_id AND s.project_id = b.project_id))
ORDER BY ids LIMIT :row_limit::int;

-- name: reruns_have_copies :many
-- Protocol §6 rerun: a rerun reads and writes boxes of its own, whose cards are those that the step had read, each in
-- its place: none that the turn itself wrote in that step or later.
SELECT jsonb_build_object('project_id', r.project_id, 'agent_turn_id', r.agent_turn_id,
                          'box_id', r.box_id, 'card_id', p.card_id) AS ids,
       CASE WHEN r.box_id = r.old_box_id THEN 'it has a box of the turn that it runs again'
            WHEN q.card_id IS DISTINCT FROM p.card_id THEN 'the copy has another card in this place'
            ELSE 'the copy has a card of the step that it runs again, or of a later one' END AS detail
FROM (
    SELECT i.project_id, i.agent_turn_id, x.box_id, state.as_uuid(x.old_box_id) AS old_box_id,
           i.payload -> 'rerun' ->> 'of' AS rerun_of, state.as_count(i.payload -> 'rerun' ->> 'from_step') AS from_step
    FROM state.agent_inbox i
    JOIN state.agent_inbox b ON b.agent_turn_id = i.payload -> 'rerun' ->> 'of'
        AND b.project_id = i.project_id AND b.message_type IN {turn_types}
    CROSS JOIN LATERAL (VALUES (state.as_uuid(i.payload ->> 'context_box_id'), b.payload ->> 'context_box_id'),
                               (state.as_uuid(i.payload ->> 'output_box_id'), coalesce((
                                   SELECT s.output_box_id::text FROM state.agent_steps s
                                   WHERE s.step_id = b.agent_turn_id || '-s' || (i.payload -> 'rerun' ->> 'from_step')
                                     AND s.project_id = b.project_id), (
                                   SELECT o.output_box_id::text FROM state.turn_outcomes o
                                   WHERE o.agent_turn_id = b.agent_turn_id),
                                   b.payload ->> 'output_box_id'))) x (box_id, old_box_id)
    WHERE i.payload ? 'rerun' AND i.message_type IN {turn_types}
      AND (:since::timestamptz IS NULL OR i.created_at >= :since)
      AND (:project_id::text IS NULL OR i.project_id = :project_id)
) r
JOIN public.box_cards p ON p.box_id = r.box_id
JOIN public.cards c ON c.card_id = p.card_id
JOIN public.boxes x ON x.box_id = r.box_id
LEFT JOIN public.box_cards q ON q.box_id = r.old_box_id AND q.position = p.position
WHERE EXISTS (SELECT FROM public.boxes o WHERE o.box_id = r.old_box_id)
  AND (r.box_id = r.old_box_id
       OR (p.xmin = x.made_by::xid AND ((q.card_id IS DISTINCT FROM p.card_id
                                         AND c.metadata ->> 'type' NOT IN ('task.steer', 'task.runtime_config'))
           OR (c.metadata ->> 'agent_turn_id' = r.rerun_of AND (c.metadata ->> 'type' = 'task.deliverable'
               OR state.as_count(substring(c.metadata ->> 'step_id' FROM '-s([0-9]+)$')) >= r.from_step)))))
ORDER BY ids LIMIT :row_limit::int;
