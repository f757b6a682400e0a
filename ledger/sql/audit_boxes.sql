-- The audit's rules on cards and boxes. They read the tables that grow most, so each reads them once and no more of them than it
-- needs. Of a window they look at the boxes that its turns name, and at cards by the ids that kernel makes of a turn's, which sort
-- by time. A box may be a copy of another (a fork, or a context with an instruction added): it holds cards older than itself.

-- name: deliverable_in_its_box :many
-- Protocol §2.3: the card that an outcome names is a task.deliverable of its turn, in the output box that the outcome names.
SELECT jsonb_build_object('project_id', o.project_id, 'agent_turn_id', o.agent_turn_id, 'card_id', o.deliverable_card_id,
                          'box_id', o.output_box_id) AS ids,
       CASE WHEN c.card_id IS NULL THEN 'the deliverable that the outcome names is not in its box'
            ELSE 'the card that the outcome names is no deliverable of the turn' END AS detail
FROM state.agent_inbox t JOIN state.turn_outcomes o ON o.inbox_id = t.inbox_id
LEFT JOIN public.box_cards b ON b.card_id = o.deliverable_card_id AND b.box_id = o.output_box_id
LEFT JOIN public.cards c ON c.card_id = b.card_id
WHERE (c.metadata ->> 'type' = 'task.deliverable' AND c.metadata ->> 'agent_turn_id' = o.agent_turn_id) IS NOT TRUE
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
LIMIT :row_limit::int;

-- name: one_deliverable_a_turn :many
-- Protocol §2.3: a turn delivers once: the outcome of its turn names each task.deliverable that is in a box.
SELECT jsonb_build_object('project_id', c.tenant_id, 'agent_turn_id', c.metadata ->> 'agent_turn_id', 'card_id', c.card_id) AS ids,
       'no outcome names this deliverable, which is in a box' AS detail
FROM public.cards c
LEFT JOIN state.turn_outcomes o ON o.deliverable_card_id = c.card_id AND o.agent_turn_id = c.metadata ->> 'agent_turn_id'
WHERE c.metadata ->> 'type' = 'task.deliverable' AND o.agent_turn_id IS NULL
  AND (SELECT count(*) FROM public.box_cards b WHERE b.card_id = c.card_id) > 0
  AND (:since_id::text IS NULL OR (c.card_id >= :since_id AND c.card_id < '1'))
  AND (:project_id::text IS NULL OR c.tenant_id = :project_id)
LIMIT :row_limit::int;

-- name: nothing_after_the_deliverable :many
-- Protocol §2.2: what a turn writes after its end is lost: no card of its own follows its deliverable.
SELECT jsonb_build_object('project_id', o.project_id, 'agent_turn_id', o.agent_turn_id, 'card_id', n.card_id, 'box_id', n.box_id) AS ids,
       'a card of the turn follows its deliverable' AS detail
FROM state.agent_inbox t JOIN state.turn_outcomes o ON o.inbox_id = t.inbox_id
JOIN public.box_cards b ON b.card_id = o.deliverable_card_id AND b.box_id = o.output_box_id
JOIN public.box_cards n ON n.box_id = b.box_id AND n.position = b.position + 1
JOIN public.cards c ON c.card_id = n.card_id AND c.metadata ->> 'agent_turn_id' = o.agent_turn_id
WHERE (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
LIMIT :row_limit::int;

-- name: named_result_in_its_box :many
-- Protocol §4.2: the tool result that an outcome names is a tool.result in its output box.
SELECT jsonb_build_object('project_id', o.project_id, 'agent_turn_id', o.agent_turn_id, 'card_id', o.tool_result_card_id,
                          'box_id', o.output_box_id) AS ids, 'the outcome names a result that its box does not have' AS detail
FROM state.agent_inbox t JOIN state.turn_outcomes o ON o.inbox_id = t.inbox_id
LEFT JOIN public.box_cards b ON b.card_id = o.tool_result_card_id AND b.box_id = o.output_box_id
LEFT JOIN public.cards c ON c.card_id = b.card_id AND c.metadata ->> 'type' = 'tool.result'
WHERE o.tool_result_card_id IS NOT NULL AND c.card_id IS NULL
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
LIMIT :row_limit::int;

-- name: box_without_a_row :many
-- Protocol §4.5: the boxes that a turn names are boxes of its project.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_turn_id', t.agent_turn_id, 'box_id', t.box_id) AS ids,
       format('the %s of the turn is no box of the project', t.what) AS detail
FROM (
    SELECT i.project_id, i.agent_turn_id, n.what, n.box_id FROM state.agent_inbox i
    CROSS JOIN LATERAL (VALUES ('profile box', i.payload ->> 'profile_box_id'), ('context box', i.payload ->> 'context_box_id'),
                               ('output box', i.payload ->> 'output_box_id')) n (what, box_id)
    WHERE i.message_type IN ('turn', 'ui_action') AND i.request_digest IS NOT NULL
      AND (:since::timestamptz IS NULL OR i.created_at >= :since)
      AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
) t
LEFT JOIN public.boxes b ON b.tenant_id = t.project_id
    AND b.box_id = CASE WHEN pg_input_is_valid(t.box_id, 'uuid') THEN t.box_id::uuid END
WHERE b.box_id IS NULL
LIMIT :row_limit::int;

-- name: positions_without_gaps :many
-- Protocol §4.5: the positions of a box are 1 to n.
SELECT jsonb_build_object('box_id', b.box_id) AS ids, format('%s cards at positions %s to %s', count(*), min(b.position), max(b.position)) AS detail
FROM (
    SELECT x.box_id FROM public.boxes x
    WHERE (:since_id::text IS NULL OR x.box_id >= :since_id::text::uuid) AND (:project_id::text IS NULL OR x.tenant_id = :project_id)
    UNION
    SELECT o.output_box_id FROM state.agent_inbox t JOIN state.turn_outcomes o ON o.inbox_id = t.inbox_id
    WHERE t.created_at >= :since::timestamptz AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
) x
JOIN public.box_cards b ON b.box_id = x.box_id
GROUP BY b.box_id HAVING count(*) <> max(b.position) OR min(b.position) <> 1
LIMIT :row_limit::int;

-- name: no_card_twice_in_a_box :many
-- Protocol §4.5: no card is in a box twice.
SELECT jsonb_build_object('box_id', b.box_id, 'card_id', b.card_id) AS ids, format('the card is in the box %s times', count(*)) AS detail
FROM public.box_cards b
WHERE b.card_id IN (
    SELECT c.card_id FROM public.box_cards c WHERE (:since_id::text IS NULL OR c.box_id >= :since_id::text::uuid)
    GROUP BY c.card_id HAVING count(*) > 1)
  AND (:project_id::text IS NULL OR EXISTS (SELECT FROM public.boxes x WHERE x.box_id = b.box_id AND x.tenant_id = :project_id))
GROUP BY b.box_id, b.card_id HAVING count(*) > 1
LIMIT :row_limit::int;

-- name: places_are_whole :many
-- Protocol §4.5: what is in a box is there: the box, the card, and both of one project.
SELECT jsonb_build_object('box_id', b.box_id, 'card_id', b.card_id, 'project_id', x.tenant_id) AS ids,
       CASE WHEN x.box_id IS NULL THEN 'a card in a box that is not there' WHEN c.card_id IS NULL THEN 'the card in the box is not there'
            ELSE 'box and card are of two projects' END AS detail
FROM public.box_cards b LEFT JOIN public.boxes x ON x.box_id = b.box_id LEFT JOIN public.cards c ON c.card_id = b.card_id
WHERE (x.box_id IS NULL OR c.card_id IS NULL OR x.tenant_id <> c.tenant_id)
  AND (:since_id::text IS NULL OR b.box_id >= :since_id::text::uuid)
  AND (:project_id::text IS NULL OR x.tenant_id = :project_id OR c.tenant_id = :project_id)
LIMIT :row_limit::int;

-- name: cards_are_in_their_boxes :many
-- Protocol §2.9: what a turn wrote is in its output box, and in no box that was there before it; never in its context box. Only
-- results that no call took are in no box.
SELECT jsonb_build_object('project_id', c.tenant_id, 'agent_turn_id', t.agent_turn_id, 'card_id', c.card_id, 'box_id', b.box_id) AS ids,
       CASE WHEN b.card_id IS NULL THEN 'the card is in no box' WHEN b.box_id = t.context_box_id THEN 'the turn wrote it into its context box'
            ELSE 'the turn wrote it into a box that is not its own' END AS detail
FROM public.cards c
LEFT JOIN public.box_cards b ON b.card_id = c.card_id
LEFT JOIN LATERAL (
    SELECT i.agent_turn_id, CASE WHEN pg_input_is_valid(i.payload ->> 'context_box_id', 'uuid')
                                 THEN (i.payload ->> 'context_box_id')::uuid END AS context_box_id,
           coalesce(o.output_box_id, CASE WHEN pg_input_is_valid(i.payload ->> 'output_box_id', 'uuid')
                                          THEN (i.payload ->> 'output_box_id')::uuid END) AS output_box_id
    FROM state.agent_inbox i LEFT JOIN state.turn_outcomes o ON o.inbox_id = i.inbox_id
    WHERE i.agent_turn_id = c.metadata ->> 'agent_turn_id' AND i.message_type IN ('turn', 'ui_action')) t ON true
WHERE (b.card_id IS NULL AND c.metadata ->> 'type' <> 'tool.result' AND (c.metadata ? 'agent_turn_id' OR c.metadata ->> 'type' = 'sys.profile')
    OR c.metadata ->> 'type' NOT IN ('task.instruction', 'task.result_fields')
       AND (b.box_id = t.context_box_id
            OR b.box_id <> t.output_box_id AND c.created_at - interval '1 minute' > (SELECT x.created_at FROM public.boxes x WHERE x.box_id = b.box_id)))
  AND (:since_id::text IS NULL OR (c.card_id >= :since_id AND c.card_id < '1'))
  AND (:project_id::text IS NULL OR c.tenant_id = :project_id)
LIMIT :row_limit::int;
