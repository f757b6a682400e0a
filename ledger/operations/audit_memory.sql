-- The audit's rules on compactions of the memory of turns. Few steps compact, and each box is read once. The box before
-- may be gone: then nothing is compared with it.

-- name: compactions_make_boxes :many
-- Protocol §7.3: a step that compacts makes a box of the one that it read, which has the step's memory.cut, and of the
-- cards that the step had read exactly those from the first one that the cut names, in their order, and earlier cuts of
-- the turn in hand; of a cut within the turn also all other cards before it but the turn's thoughts, calls, results and
-- summaries. No conversation goes on in the one that it read.
SELECT jsonb_build_object('project_id', s.project_id, 'agent_turn_id', s.agent_turn_id,
                          'step_id', s.step_id, 'box_id', s.made_box_id) AS ids,
       coalesce(CASE WHEN b.box_id IS NULL THEN 'the box that the step says it made is not there'
                     WHEN b.parent_ids IS DISTINCT FROM ARRAY[s.output_box_id]
                          THEN 'the box was not made of the one that the step read' END,
                CASE WHEN cut.card_id IS NULL THEN 'the box does not have the cut of the step' END,
                CASE WHEN cut.first IS NULL THEN 'the cut names no card of the box' END, wrong.detail,
                'a conversation goes on in the box that was compacted') AS detail
FROM {compactions_since} s
LEFT JOIN public.boxes b ON b.box_id = s.made_box_id AND b.tenant_id = s.project_id
LEFT JOIN LATERAL (
    SELECT c.card_id, c.content #>> '{data,first_card_id}' AS first_card_id,
           c.content @> '{"data": {"within_turn": true}}' AS within_turn, (
               SELECT f.position FROM public.box_cards f
               WHERE f.box_id = s.made_box_id AND f.card_id = c.content #>> '{data,first_card_id}') AS first
    FROM public.box_cards p JOIN public.cards c ON c.card_id = p.card_id
    WHERE p.box_id = s.made_box_id AND c.metadata ->> 'type' = 'memory.cut'
      AND c.metadata ->> 'step_id' = s.step_id LIMIT 1) cut ON true
LEFT JOIN LATERAL (
    SELECT CASE WHEN n.position IS NULL THEN 'a card that the cut keeps is not in the box'
                WHEN o.position < k.position THEN 'the box has a card that the cut leaves out'
                ELSE 'the cards that are kept are not in their order' END AS detail
    FROM (SELECT coalesce((SELECT f.position FROM public.box_cards f
                           WHERE f.box_id = s.output_box_id AND f.card_id = cut.first_card_id),
                          s.read_position + 1) AS position) k
    CROSS JOIN LATERAL (
        SELECT x.position, x.card_id FROM public.box_cards x
        WHERE x.box_id = s.output_box_id AND x.position <= s.read_position) o
    LEFT JOIN public.box_cards n ON n.box_id = s.made_box_id AND n.card_id = o.card_id
    WHERE CASE WHEN o.position < k.position
               THEN EXISTS (
                   SELECT FROM public.cards c WHERE c.card_id = o.card_id AND CASE
                       WHEN c.metadata ->> 'type' = 'memory.cut' THEN false
                       WHEN cut.within_turn AND NOT {cut_within_turn(c, s.agent_turn_id)}
                            THEN n.position IS NULL AND c.expires_at IS NULL AND c.deleted_at IS NULL
                       ELSE n.position IS NOT NULL END)
               ELSE n.position IS NULL OR n.position - cut.first <> o.position - k.position END
    ORDER BY o.position LIMIT 1) wrong ON true
WHERE b.box_id IS NULL OR b.parent_ids IS DISTINCT FROM ARRAY[s.output_box_id]
   OR cut.card_id IS NULL OR cut.first IS NULL
   OR wrong.detail IS NOT NULL OR EXISTS (SELECT FROM state.conversations t WHERE t.output_box_id = s.output_box_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: cuts_are_between_turns :many
-- Protocol §7.3: of the cards that a compacting step had read no turn but its own is kept in part, and no tool.result
-- without its call.
WITH placed AS MATERIALIZED (
    SELECT s.project_id, s.agent_turn_id AS compacted_by, s.made_box_id AS box_id, NOT EXISTS (
               SELECT FROM public.box_cards n WHERE n.box_id = s.made_box_id AND n.card_id = b.card_id) AS is_gone,
           c.card_id, c.metadata ->> 'agent_turn_id' AS agent_turn_id, c.metadata ->> 'type' AS type,
           c.tool_call_id, c.tool_calls
    FROM {compactions_since} s
    JOIN public.box_cards b ON b.box_id = s.output_box_id AND b.position <= s.read_position
    JOIN public.cards c ON c.card_id = b.card_id AND c.metadata ->> 'type' NOT IN ('memory.cut', 'memory.summary')
    WHERE EXISTS (SELECT FROM public.boxes x WHERE x.box_id = s.made_box_id)
)
SELECT jsonb_build_object('project_id', p.project_id, 'box_id', p.box_id, 'agent_turn_id', p.agent_turn_id) AS ids,
       'the box was made with a part of the turn' AS detail
FROM placed p WHERE p.agent_turn_id <> p.compacted_by
GROUP BY p.project_id, p.box_id, p.agent_turn_id HAVING bool_or(p.is_gone) AND NOT bool_and(p.is_gone)
UNION ALL
SELECT jsonb_build_object('project_id', r.project_id, 'box_id', r.box_id, 'agent_turn_id', r.agent_turn_id,
                          'card_id', r.card_id),
       'the box was made with the result, and without its call'
FROM placed r JOIN (
    SELECT t.box_id, x ->> 'tool_call_id' AS tool_call_id, bool_and(t.is_gone) AS is_gone
    FROM placed t CROSS JOIN LATERAL jsonb_array_elements(t.tool_calls) x WHERE jsonb_typeof(t.tool_calls) = 'array'
    GROUP BY 1, 2) c ON c.box_id = r.box_id AND c.tool_call_id = r.tool_call_id
WHERE r.type = 'tool.result' AND NOT r.is_gone AND c.is_gone
ORDER BY ids LIMIT :row_limit::int;
