-- The audit's rules on cards and boxes. They read the largest tables, so each reads them once and only as far as
-- needed. For a window they read the boxes that its turns name, and cards by the ids that the kernel derives from a
-- turn's, which sort by time. A box may be a copy of another (a fork, or a context with an instruction added): it holds
-- cards older than itself.

-- name: deliverable_in_its_box :many
-- Protocol §2.3: the output box that an outcome names has one task.deliverable of the turn, the one that the outcome
-- names, and after it no card that the turn made (§2.2).
WITH ended AS MATERIALIZED (
    SELECT o.project_id, o.agent_turn_id, o.output_box_id, o.deliverable_card_id FROM state.turn_outcomes o
    WHERE (:since_id::text IS NULL OR o.agent_turn_id >= :since_id)
      AND (:project_id::text IS NULL OR o.project_id = :project_id)
)
SELECT jsonb_build_object('project_id', o.project_id, 'agent_turn_id', o.agent_turn_id, 'box_id', o.output_box_id,
                          'card_id', o.deliverable_card_id) AS ids,
       CASE WHEN m.deliverables IS DISTINCT FROM 1
                 THEN format('the box has %s deliverables of the turn', coalesce(m.deliverables, 0))
            WHEN m.card_id <> o.deliverable_card_id THEN 'the deliverable in the box is another, ' || m.card_id
            ELSE 'the turn wrote cards after its deliverable' END AS detail
FROM ended o
LEFT JOIN (
    SELECT b.box_id, c.metadata ->> 'agent_turn_id' AS agent_turn_id, max(b.position) AS last,
           count(*) FILTER (WHERE c.metadata ->> 'type' = 'task.deliverable') AS deliverables,
           max(b.position) FILTER (WHERE c.metadata ->> 'type' = 'task.deliverable') AS place,
           max(c.card_id) FILTER (WHERE c.metadata ->> 'type' = 'task.deliverable') AS card_id
    FROM public.cards c JOIN public.box_cards b ON b.card_id = c.card_id
    WHERE b.box_id IN (SELECT e.output_box_id FROM ended e)
    GROUP BY 1, 2
) m ON m.box_id = o.output_box_id AND m.agent_turn_id = o.agent_turn_id
WHERE (m.deliverables, m.card_id, m.place) IS DISTINCT FROM (1, o.deliverable_card_id, m.last)
ORDER BY ids LIMIT :row_limit::int;

-- name: named_result_in_its_box :many
-- Protocol §4.2: the tool result that an outcome names is a tool.result in its output box.
SELECT jsonb_build_object('project_id', o.project_id, 'agent_turn_id', o.agent_turn_id,
                          'card_id', o.tool_result_card_id,
                          'box_id', o.output_box_id) AS ids,
       'the outcome names a result that its box does not have' AS detail
FROM state.turn_outcomes o
LEFT JOIN public.box_cards b ON b.card_id = o.tool_result_card_id AND b.box_id = o.output_box_id
LEFT JOIN public.cards c ON c.card_id = b.card_id AND c.metadata ->> 'type' = 'tool.result'
WHERE o.tool_result_card_id IS NOT NULL AND c.card_id IS NULL
  AND (:since_id::text IS NULL OR o.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR o.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: box_without_a_row :many
-- Protocol §4.5: the boxes that a turn names are boxes of its project.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_turn_id', t.agent_turn_id, 'box_id', t.box_id) AS ids,
       format('the %s of the turn is no box of the project', t.what) AS detail
FROM (
    SELECT i.project_id, i.agent_turn_id, n.what, n.box_id FROM state.agent_inbox i
    CROSS JOIN LATERAL (VALUES ('profile box', i.payload ->> 'profile_box_id'),
                               ('context box', i.payload ->> 'context_box_id'),
                               ('output box', i.payload ->> 'output_box_id')) n (what, box_id)
    WHERE i.message_type IN {turn_types} AND i.request_digest IS NOT NULL
      -- a lease gives a conversation's turn its output box
      AND (n.box_id IS NOT NULL OR NOT i.payload ? 'conversation_id')
      AND (:since::timestamptz IS NULL OR i.created_at >= :since)
      AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
) t
LEFT JOIN public.boxes b ON b.tenant_id = t.project_id
    AND b.box_id = CASE WHEN pg_input_is_valid(t.box_id, 'uuid') THEN t.box_id::uuid END
WHERE b.box_id IS NULL
ORDER BY ids LIMIT :row_limit::int;

-- name: positions_without_gaps :many
-- Protocol §4.5: the positions of a box are 1 to n.
SELECT jsonb_build_object('box_id', b.box_id) AS ids,
       format('%s cards at positions %s to %s', count(*), min(b.position), max(b.position)) AS detail
FROM public.box_cards b
WHERE b.box_id IN (
    SELECT x.box_id FROM public.boxes x
    WHERE (:since_id::text IS NULL OR x.box_id >= :since_id::text::uuid)
      AND (:project_id::text IS NULL OR x.tenant_id = :project_id)
    UNION ALL
    SELECT o.output_box_id FROM state.turn_outcomes o
    WHERE o.agent_turn_id >= :since_id AND (:project_id::text IS NULL OR o.project_id = :project_id))
GROUP BY b.box_id HAVING count(*) <> max(b.position) OR min(b.position) <> 1
ORDER BY ids LIMIT :row_limit::int;

-- name: no_card_twice_in_a_box :many
-- Protocol §2.8: no card that a turn wrote is in a box twice.
SELECT jsonb_build_object('project_id', c.tenant_id, 'agent_turn_id', c.metadata ->> 'agent_turn_id',
                          'box_id', b.box_id,
                          'card_id', c.card_id) AS ids, format('the card is in the box %s times', b.times) AS detail
FROM (
    SELECT b.box_id, b.card_id, count(*) AS times FROM public.box_cards b
    WHERE b.card_id IN (
        SELECT p.card_id FROM public.box_cards p WHERE (:since_id::text IS NULL OR p.box_id >= :since_id::text::uuid)
        GROUP BY p.card_id HAVING count(*) > 1)
    GROUP BY b.box_id, b.card_id HAVING count(*) > 1
) b
JOIN public.cards c ON c.card_id = b.card_id
WHERE c.metadata ? 'agent_turn_id' AND (:project_id::text IS NULL OR c.tenant_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: made_boxes_hold_each_card_once :many
-- Protocol §6 box_make: a box made of parts has each of its cards once, and at most 10,000.
SELECT jsonb_build_object('project_id', x.tenant_id, 'box_id', x.box_id) AS ids,
       format('it was made of parts, and has %s cards at %s positions', count(DISTINCT b.card_id), count(*)) AS detail
FROM public.boxes x JOIN public.box_cards b ON b.box_id = x.box_id
WHERE x.request_digest IS NOT NULL
  AND (:since_id::text IS NULL OR x.box_id >= :since_id::text::uuid)
  AND (:project_id::text IS NULL OR x.tenant_id = :project_id)
GROUP BY x.box_id HAVING count(*) <> count(DISTINCT b.card_id) OR count(*) > 10000
ORDER BY ids LIMIT :row_limit::int;

-- name: places_are_whole :many
-- Protocol §4.5: the box and the card of each position exist, and are of one project.
SELECT jsonb_build_object('box_id', b.box_id, 'card_id', b.card_id, 'project_id', x.tenant_id) AS ids,
       CASE WHEN x.box_id IS NULL THEN 'a card in a box that is not there'
            WHEN c.card_id IS NULL THEN 'the card in the box is not there'
            ELSE 'box and card are of two projects' END AS detail
FROM public.box_cards b
LEFT JOIN public.boxes x ON x.box_id = b.box_id AND (:since_id::text IS NULL OR x.box_id >= :since_id::text::uuid)
LEFT JOIN public.cards c ON c.card_id = b.card_id
WHERE (x.box_id IS NULL OR c.card_id IS NULL OR x.tenant_id <> c.tenant_id)
  AND (:since_id::text IS NULL OR b.box_id >= :since_id::text::uuid)
  AND (:project_id::text IS NULL OR x.tenant_id = :project_id OR c.tenant_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: cards_are_in_their_boxes :many
-- Protocol §2.9: the cards of a turn are in its output box, and in no other box that existed before it; never in its
-- context box. Only results that no call took, calls of v1r4's programs that no turn makes (§12.11), and what no step
-- asked with (§6, steer), are in no box. Turns that are over are found by their outcomes, the few others by lookup.
SELECT jsonb_build_object('project_id', c.tenant_id, 'agent_turn_id', c.metadata ->> 'agent_turn_id',
                          'card_id', c.card_id,
                          'box_id', b.box_id) AS ids,
       CASE WHEN b.card_id IS NULL THEN 'the card is in no box'
            WHEN b.box_id::text = t.context_box_id THEN 'the turn wrote it into its context box'
            ELSE 'the turn wrote it into a box that is not its own' END AS detail
FROM public.cards c
LEFT JOIN public.box_cards b ON b.card_id = c.card_id
LEFT JOIN public.boxes x ON x.box_id = b.box_id
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = c.metadata ->> 'agent_turn_id' AND o.output_box_id = b.box_id
    AND (:since_id::text IS NULL OR o.agent_turn_id >= :since_id)
LEFT JOIN LATERAL (
    SELECT i.payload ->> 'context_box_id' AS context_box_id, i.payload ->> 'output_box_id' AS output_box_id
    FROM state.agent_inbox i
    WHERE i.agent_turn_id = c.metadata ->> 'agent_turn_id' AND i.message_type IN {turn_types}
      AND c.metadata ->> 'type' NOT IN ('task.instruction', 'task.result_fields',
                                        'task.runtime_config', 'meta.parent_pointer') LIMIT 1) t ON true
WHERE o.agent_turn_id IS NULL
  AND CASE WHEN b.card_id IS NULL
           THEN c.metadata ->> 'type' NOT IN ('tool.result', 'task.steer')
                AND (c.metadata ? 'agent_turn_id' OR c.metadata ->> 'type' = 'sys.profile')
                AND NOT (c.metadata ->> 'type' = 'tool.call' AND EXISTS (
                    SELECT FROM state.peer_call(c.tenant_id, c.card_id)))
           ELSE b.box_id::text = t.context_box_id
                OR (b.box_id::text <> t.output_box_id AND c.created_at - interval '1 minute' > x.created_at) END
  AND (:since_id::text IS NULL OR (c.card_id >= :since_id AND c.card_id < '1'))
  AND (:project_id::text IS NULL OR c.tenant_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: context_boxes_never_change :many
-- Protocol §2.9: every card of a box that is only a context was added in the transaction that made the box. Not checked
-- in a database that was restored from a dump, which does not keep transaction ids.
SELECT jsonb_build_object('project_id', x.tenant_id, 'box_id', x.box_id, 'card_id', b.card_id) AS ids,
       'the card entered a context box after the box was made' AS detail
FROM public.boxes x JOIN public.box_cards b ON b.box_id = x.box_id
WHERE b.xmin <> x.xmin AND x.xmin = x.made_by::xid AND x.box_id IN (
    SELECT CASE WHEN pg_input_is_valid(t.payload ->> 'context_box_id', 'uuid')
                     THEN (t.payload ->> 'context_box_id')::uuid END
    FROM state.agent_inbox t
    WHERE t.message_type IN {turn_types}
      AND (:since::timestamptz IS NULL OR t.created_at >= :since)
      AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id))
  -- Whether a box is also written to is looked up by the index that retention has for it, and as it names both rows,
  -- only for the few cards that came later.
  AND NOT EXISTS (SELECT FROM state.agent_inbox o
                  WHERE lower(o.payload ->> 'output_box_id') = x.box_id::text AND o.message_type IN {turn_types}
                  AND b.xmin <> x.xmin {by_key})
ORDER BY ids LIMIT :row_limit::int;

-- name: boxes_are_of_one_channel :many
-- Protocol §4.2: turns that write into one box are of one channel; so are the boxes
-- that a channel's pointers name.
SELECT x.ids, x.detail FROM (
    SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'agent_turn_id', i.agent_turn_id,
                              'box_id', i.payload ->> 'output_box_id') AS ids,
           format('the turn is of channel %s, and writes where a turn of another channel writes',
                  i.channel_id) AS detail, i.project_id
    FROM state.agent_inbox i
    WHERE i.message_type IN {turn_types} AND i.created_at >= coalesce(:since::timestamptz, '-infinity')
      AND EXISTS (
        SELECT FROM state.agent_inbox o
        WHERE lower(o.payload ->> 'output_box_id') = lower(i.payload ->> 'output_box_id')
          AND o.message_type IN {turn_types} AND o.project_id = i.project_id AND o.channel_id <> i.channel_id {by_key})
    UNION ALL
    SELECT jsonb_build_object('project_id', p.project_id, 'agent_id', p.agent_id, 'box_id', p.last_output_box_id),
           format('the pointer of channel %s names a box of another channel', p.channel_id), p.project_id
    FROM state.channel_pointers p
    WHERE (:since::timestamptz IS NULL OR p.updated_at >= :since) AND EXISTS (
        SELECT FROM state.agent_inbox o WHERE lower(o.payload ->> 'output_box_id') = p.last_output_box_id::text
          AND o.message_type IN {turn_types} AND o.project_id = p.project_id
          AND o.channel_id <> p.channel_id {by_key})) x
WHERE :project_id::text IS NULL OR x.project_id = :project_id
ORDER BY x.ids LIMIT :row_limit::int;
