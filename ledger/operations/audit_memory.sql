-- The audit's rules on compactions of the memory of turns. Few steps compact, and each box is read twice: as the one
-- that was made, and as the one that was read. The box before may be gone: then nothing is compared with it. Cards are
-- compared by grouping those of both boxes, which costs the same however many boxes a card is in.

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
                CASE WHEN cut.is_there IS NOT TRUE THEN 'the box does not have the cut of the step' END,
                CASE WHEN cut.first IS NULL THEN 'the cut names no card of the box' END, cut.wrong,
                'a conversation goes on in the box that was compacted') AS detail
FROM {compactions_since} s
LEFT JOIN public.boxes b ON b.box_id = s.made_box_id AND b.tenant_id = s.project_id
LEFT JOIN LATERAL (
    SELECT bool_or(k.is_cut) AS is_there, max(k.made_first) AS first,
           (array_agg(CASE WHEN k.made IS NULL THEN 'a card that the cut keeps is not in the box'
                           WHEN k.position < k.read_first THEN 'the box has a card that the cut leaves out'
                           ELSE 'the cards that are kept are not in their order' END ORDER BY k.position)
            FILTER (WHERE CASE WHEN k.position IS NULL THEN false
                               WHEN k.position >= k.read_first
                                    THEN (k.made - k.made_first = k.position - k.read_first) IS NOT TRUE
                               WHEN k.type = 'memory.cut' THEN false
                               WHEN k.within_turn AND NOT k.is_of_steps THEN k.made IS NULL AND k.is_alive
                               ELSE k.made IS NOT NULL END))[1] AS wrong
    FROM (
        SELECT t.*, coalesce(max(t.position) FILTER (WHERE t.card_id = t.first_card_id) OVER (),
                             s.read_position + 1) AS read_first,
               max(t.made) FILTER (WHERE t.card_id = t.first_card_id) OVER () AS made_first
        FROM (
            SELECT p.*, c.type, c.is_of_steps, c.is_alive, c.is_cut,
                   max(c.first_card_id) FILTER (WHERE c.is_cut) OVER () AS first_card_id,
                   bool_or(c.within_turn) FILTER (WHERE c.is_cut) OVER () AS within_turn
            FROM (
                SELECT x.card_id, min(x.position) FILTER (WHERE x.box_id = s.output_box_id) AS position,
                       min(x.position) FILTER (WHERE x.box_id = s.made_box_id) AS made
                FROM public.box_cards x
                WHERE x.box_id IN (s.output_box_id, s.made_box_id)
                  AND (x.box_id = s.made_box_id OR x.position <= s.read_position)
                GROUP BY x.card_id) p
            CROSS JOIN LATERAL (
                SELECT y.metadata ->> 'type' AS type, {cut_within_turn(y, s.agent_turn_id)} AS is_of_steps,
                       y.expires_at IS NULL AND y.deleted_at IS NULL AS is_alive,
                       y.content #>> '{data,first_card_id}' AS first_card_id,
                       y.content @> '{"data": {"within_turn": true}}' AS within_turn,
                       p.made IS NOT NULL AND y.metadata ->> 'type' = 'memory.cut'
                           AND y.metadata ->> 'step_id' = s.step_id AS is_cut
                FROM public.cards y WHERE y.card_id = p.card_id {by_key}) c) t) k) cut ON true
WHERE b.box_id IS NULL OR b.parent_ids IS DISTINCT FROM ARRAY[s.output_box_id]
   OR cut.is_there IS NOT TRUE OR cut.first IS NULL OR cut.wrong IS NOT NULL
   OR EXISTS (SELECT FROM state.conversations t WHERE t.output_box_id = s.output_box_id)
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
