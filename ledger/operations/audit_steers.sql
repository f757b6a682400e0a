-- The audit's rules on steers: what people say to turns while they run. Steers are few, and each is looked up by its
-- turn. Of a window: steers of turns enqueued in it, or in hand now.

-- name: steers_go_with_their_turn :many
-- Protocol §6 steer: no steer waits for a turn that is over, and one that is taken is in the step that its turn is in.
SELECT jsonb_build_object('project_id', s.project_id, 'agent_turn_id', s.agent_turn_id, 'steer_id', s.steer_id) AS ids,
       CASE WHEN o.agent_turn_id IS NOT NULL THEN format('the turn is over, and the steer is %s', s.status)
            ELSE 'the step that took the steer does not run' END AS detail
FROM {of_turns_since(state.steers, agent_turn_id)} s
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = s.agent_turn_id
LEFT JOIN state.agent_state_head h ON h.agent_id = s.agent_id AND h.project_id = s.project_id
    AND h.active_agent_turn_id = s.agent_turn_id
WHERE s.status IN ('waiting', 'taken')
  AND (o.agent_turn_id IS NOT NULL
       OR (s.status = 'taken' AND s.step_id IS DISTINCT FROM s.agent_turn_id || '-s' || (h.step_count + 1)))
  AND (:project_id::text IS NULL OR s.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: steers_are_asked_with_once :many
-- Protocol §6 steer: the card of a steer that a step took is once in the output box, and no other steer's is; that of
-- an applied one is made known by that step, and by no other.
SELECT jsonb_build_object('project_id', s.project_id, 'agent_turn_id', s.agent_turn_id, 'steer_id', s.steer_id) AS ids,
       CASE WHEN s.step_id IS NULL
                 THEN format('no step took the steer, it is %s, and its card is in the output box', s.status)
            WHEN t.steps <> CASE s.status WHEN 'applied' THEN ARRAY[s.step_id] ELSE '{}' END
                 THEN 'the step that took the steer does not name its card, or another does'
            ELSE format('the card is in the output box %s times', p.places) END AS detail
FROM {of_turns_since(state.steers, agent_turn_id)} s
CROSS JOIN LATERAL (
    SELECT state.as_uuid({box_of_turn(i, NULL::int)}) AS box_id FROM state.agent_inbox i
    WHERE i.agent_turn_id = s.agent_turn_id AND i.project_id = s.project_id
      AND i.message_type IN {turn_types} LIMIT 1) i
CROSS JOIN LATERAL (SELECT count(*) AS places FROM public.box_cards b
                    WHERE b.card_id = s.steer_id AND b.box_id = i.box_id) p
CROSS JOIN LATERAL (
    SELECT ARRAY(SELECT x.step_id FROM state.agent_steps x
                 WHERE x.agent_turn_id = s.agent_turn_id AND x.project_id = s.project_id
                   AND x.metadata -> 'new_card_ids' ? s.steer_id) AS steps) t
WHERE (p.places <> CASE WHEN s.step_id IS NULL THEN 0 ELSE 1 END
       OR t.steps <> CASE s.status WHEN 'applied' THEN ARRAY[s.step_id] ELSE '{}' END)
  AND (:project_id::text IS NULL OR s.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: steers_are_in_order :many
-- Protocol §6 steer: of two steers of a turn, the one that was accepted first is not asked with later, unless it was to
-- wait until the turn is idle; within one step they are asked with in this order.
SELECT jsonb_build_object('project_id', a.project_id, 'agent_turn_id', a.agent_turn_id,
                          'steer_id', a.steer_id, 'other_steer_id', b.steer_id) AS ids,
       'the steer was accepted before the other and asked with after it' AS detail
FROM {of_turns_since(state.steers, agent_turn_id)} a
JOIN state.steers b ON b.agent_turn_id = a.agent_turn_id AND b.project_id = a.project_id
    AND b.seq > a.seq AND b.status = 'applied'
CROSS JOIN LATERAL (
    SELECT state.as_count(substring(a.step_id FROM '-s([0-9]+)$')) AS first,
           state.as_count(substring(b.step_id FROM '-s([0-9]+)$')) AS second,
           (SELECT min(x.position) FROM public.box_cards x JOIN state.agent_steps t ON t.step_id = a.step_id
                AND t.project_id = a.project_id
            WHERE x.card_id = a.steer_id AND x.box_id = t.output_box_id) AS place,
           (SELECT min(x.position) FROM public.box_cards x JOIN state.agent_steps t ON t.step_id = b.step_id
                AND t.project_id = b.project_id
            WHERE x.card_id = b.steer_id AND x.box_id = t.output_box_id) AS next_place) o
WHERE a.status = 'applied' AND ((o.first > o.second AND a.priority = 'asap')
                                OR (o.first = o.second AND o.place > o.next_place))
  AND (:project_id::text IS NULL OR a.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: steers_have_their_row :many
-- Protocol §4.4: a steer has an inbox row of its id, which stands where the steer stands, and one edge report/response.
SELECT jsonb_build_object('project_id', s.project_id, 'agent_turn_id', s.agent_turn_id, 'steer_id', s.steer_id) AS ids,
       CASE WHEN i.inbox_id IS NULL THEN 'the steer has no inbox row'
            WHEN e.edges <> 1 THEN format('the steer has %s edges', e.edges)
            ELSE format('the steer is %s, and its inbox row %s', s.status, i.status) END AS detail
FROM {of_turns_since(state.steers, agent_turn_id)} s
LEFT JOIN state.agent_inbox i ON i.inbox_id = s.steer_id AND i.project_id = s.project_id AND i.message_type = 'steer'
    AND i.agent_turn_id = s.agent_turn_id
CROSS JOIN LATERAL (
    SELECT count(*) AS edges FROM state.execution_edges x
    WHERE md5(x.correlation_id) = md5(s.steer_id) AND x.project_id = s.project_id
      AND x.primitive = 'report' AND x.edge_phase = 'response'
      AND x.target_agent_turn_id = s.agent_turn_id) e
WHERE (e.edges <> 1 OR i.status IS DISTINCT FROM CASE s.status
           WHEN 'waiting' THEN 'pending' WHEN 'taken' THEN 'processing'
           WHEN 'applied' THEN 'consumed' ELSE 'skipped' END)
  AND (:project_id::text IS NULL OR s.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;
