-- The audit's rules on cuts of the memory of turns. Few boxes are cut, and each is read once from its beginning.
-- Of a window: boxes cut in it that were made in it, written to by a turn that is over since, or on heads: whatever cuts a box is a turn or a copy.

-- name: cuts_name_a_card_of_their_box :many
-- Protocol §7.3: a memory.cut names a card that is in its box before it and after the one that the cut before named, and a box is
-- read from the card that its latest cut names. Cuts of turns that were rolled back and are over do not count: without another one
-- the box is read from its beginning.
SELECT jsonb_build_object('project_id', c.project_id, 'box_id', c.box_id, 'card_id', c.cut_card_id) AS ids,
       CASE WHEN c.place IS NULL THEN 'the box does not have the cut from which it is read'
            WHEN c.first IS NULL THEN 'the cut names no card of its box'
            WHEN c.first >= c.place THEN 'the cut names a card after itself'
            WHEN c.first <= c.before THEN 'the cut names no card after the one that the cut before it named'
            ELSE format('the box is read from position %s, and its latest cut names the card at %s', c.since, c.first) END AS detail
FROM (
    SELECT m.project_id, m.box_id, coalesce(k.card_id, m.cut_card_id) AS cut_card_id, k.place, k.first, m.position AS since,
           m.cut_card_id AS latest_id, lag(k.first) OVER boxes AS before, lead(k.card_id) OVER boxes IS NULL AS is_latest
    FROM {cuts_since} m LEFT JOIN LATERAL (
        SELECT c.card_id, b.position AS place, (
                   SELECT min(f.position) FROM public.box_cards f
                   WHERE f.card_id = c.content #>> '{data,first_card_id}' AND f.box_id = m.box_id) AS first
        FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
        WHERE b.box_id = m.box_id AND c.metadata ->> 'type' = 'memory.cut' AND c.metadata ->> 'author_id' = 'system'
          AND NOT EXISTS (SELECT FROM state.rollbacks r JOIN state.turn_outcomes o ON o.agent_turn_id = r.agent_turn_id
                          WHERE r.box_id = m.box_id AND r.agent_turn_id = c.metadata ->> 'agent_turn_id')) k ON true
    WHERE (:project_id::text IS NULL OR m.project_id = :project_id)
    WINDOW boxes AS (PARTITION BY m.box_id ORDER BY k.place)
) c
WHERE (c.place IS NULL AND NOT (c.since <= 1 AND EXISTS (
           SELECT FROM state.rollbacks r JOIN public.cards x ON x.card_id = c.latest_id AND x.metadata ->> 'agent_turn_id' = r.agent_turn_id
           WHERE r.box_id = c.box_id)))
   OR (c.place IS NOT NULL AND c.first IS NULL) OR c.first >= c.place OR c.first <= c.before
   OR (c.is_latest AND c.place IS NOT NULL AND (c.cut_card_id, c.first) IS DISTINCT FROM (c.latest_id, c.since))
ORDER BY ids LIMIT :row_limit::int;

-- name: cuts_are_between_turns :many
-- Protocol §7.3: of a box that is cut no turn is read in part, and no tool.result without its call.
WITH placed AS MATERIALIZED (
    SELECT m.project_id, m.box_id, b.position < m.position AS is_gone, c.card_id, c.metadata ->> 'agent_turn_id' AS agent_turn_id,
           c.metadata ->> 'type' AS type, c.tool_call_id, c.tool_calls
    FROM {cuts_since} m JOIN public.box_cards b ON b.box_id = m.box_id JOIN public.cards c ON c.card_id = b.card_id
    WHERE (:project_id::text IS NULL OR m.project_id = :project_id)
)
SELECT jsonb_build_object('project_id', p.project_id, 'box_id', p.box_id, 'agent_turn_id', p.agent_turn_id) AS ids,
       'the box is cut within the turn' AS detail
FROM placed p WHERE p.agent_turn_id IS NOT NULL
GROUP BY p.project_id, p.box_id, p.agent_turn_id HAVING bool_or(p.is_gone) AND NOT bool_and(p.is_gone)
UNION ALL
SELECT jsonb_build_object('project_id', r.project_id, 'box_id', r.box_id, 'agent_turn_id', r.agent_turn_id, 'card_id', r.card_id),
       'the box is cut between the result and its call'
FROM placed r JOIN (
    SELECT t.box_id, x ->> 'tool_call_id' AS tool_call_id, bool_and(t.is_gone) AS is_gone
    FROM placed t CROSS JOIN LATERAL jsonb_array_elements(t.tool_calls) x WHERE jsonb_typeof(t.tool_calls) = 'array'
    GROUP BY 1, 2) c ON c.box_id = r.box_id AND c.tool_call_id = r.tool_call_id
WHERE r.type = 'tool.result' AND NOT r.is_gone AND c.is_gone
ORDER BY ids LIMIT :row_limit::int;
