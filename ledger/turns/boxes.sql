-- The verbs on boxes (protocol §6): box_fork, box_make and box_replace.

-- name: fork_box :one
-- Makes a box with the present cards of another; a repeat finds the first one's box.
-- verdict: accepted | duplicate | again (repeat the statement) | the code of a refusal.
WITH
earlier AS MATERIALIZED (
    SELECT b.tenant_id = :project_id AND b.parent_ids = ARRAY[:box_id::uuid]
               AND NOT state.is_abroad(:project_id, :channel_id, b.box_id) AS same
    FROM public.boxes b WHERE b.box_id = :new_box_id::uuid
),
source AS MATERIALIZED (  -- locked: retention skips it; if retention has the lock, this waits
    SELECT b.box_id FROM public.boxes b
    WHERE b.box_id = :box_id::uuid AND b.tenant_id = :project_id AND NOT EXISTS (SELECT FROM earlier)
      AND NOT state.is_abroad(:project_id, :channel_id, b.box_id) FOR KEY SHARE
),
full_of AS MATERIALIZED (
    SELECT s.cards, {full_of_boxes(s.cards)} AS code
    FROM (SELECT count(*) AS cards FROM source JOIN public.box_cards p ON p.box_id = source.box_id) s
    WHERE EXISTS (SELECT FROM source)
),
made AS (
    INSERT INTO public.boxes (box_id, tenant_id, parent_ids, unused_of, unused_cards)
    SELECT :new_box_id::uuid, :project_id, ARRAY[source.box_id], :maker::text, f.cards
    FROM source CROSS JOIN full_of f WHERE f.code IS NULL
    ON CONFLICT DO NOTHING
    RETURNING box_id
),
copied AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT made.box_id, s.position, s.card_id FROM made JOIN public.box_cards s ON s.box_id = :box_id::uuid
)
SELECT CASE
           WHEN EXISTS (SELECT FROM made) THEN 'accepted'
           WHEN (SELECT e.same FROM earlier e) THEN 'duplicate'
           WHEN EXISTS (SELECT FROM earlier) THEN 'correlation_conflict'
           WHEN NOT EXISTS (SELECT FROM source) THEN 'unknown_box'
           ELSE coalesce((SELECT f.code FROM full_of f), 'again')
       END AS verdict;

-- name: compose_box :one
-- Makes a box of parts, in their order: cards of other boxes, single cards, and new cards. Each card is taken once, at
-- its first place. A part that is missing, or has a card that a turn of another channel made, refuses the whole. A
-- single card is taken from the newest box that has it, which is locked in its place.
-- verdict: accepted | duplicate | again (repeat the statement) | the code of a refusal; refused_place is the part's.
WITH
earlier AS MATERIALIZED (
    SELECT b.tenant_id = :project_id AND b.request_digest = :request_digest AS same
    FROM public.boxes b WHERE b.box_id = :new_box_id::uuid
),
part AS MATERIALIZED (
    SELECT p.place, p.card_id, p.is_new, p.types, p.most, coalesce(p.box_id, (
               SELECT h.box_id FROM public.box_cards h JOIN public.boxes b ON b.box_id = h.box_id
               WHERE h.card_id = p.card_id AND NOT p.is_new AND b.tenant_id = :project_id
               ORDER BY h.box_id DESC LIMIT 1)) AS box_id
    FROM jsonb_to_recordset(:parts::jsonb) p (place int, box_id uuid, most int, types text[],
                                              card_id text, is_new boolean)
    WHERE NOT EXISTS (SELECT FROM earlier)
),
held AS MATERIALIZED (  -- as in fork_box
    SELECT b.box_id FROM public.boxes b
    WHERE b.box_id = ANY (ARRAY(SELECT part.box_id FROM part)) AND b.tenant_id = :project_id
    ORDER BY b.box_id FOR KEY SHARE
),
found AS MATERIALIZED (
    SELECT part.place, s.position, s.card_id, s.agent_turn_id, s.channel_id
    FROM part JOIN held ON held.box_id = part.box_id CROSS JOIN LATERAL (
        SELECT p.position, p.card_id, c.agent_turn_id, c.channel_id FROM public.box_cards p CROSS JOIN LATERAL (
            SELECT c.metadata ->> 'agent_turn_id' AS agent_turn_id, c.metadata ->> 'channel_id' AS channel_id
            FROM public.cards c
            WHERE c.card_id = p.card_id AND state.is_alive(c.expires_at, c.deleted_at)
              AND (part.types IS NULL OR c.metadata ->> 'type' = ANY (part.types)) {by_key}) c
        WHERE p.box_id = part.box_id AND (part.card_id IS NULL OR p.card_id = part.card_id)
        ORDER BY p.position DESC LIMIT part.most) s
    UNION ALL
    SELECT part.place, 0, part.card_id, NULL, NULL FROM part WHERE part.is_new
),
abroad AS MATERIALIZED (  -- turns of another channel that made some of these cards
    SELECT made.agent_turn_id FROM (SELECT DISTINCT f.agent_turn_id FROM found f WHERE f.agent_turn_id IS NOT NULL) made
    WHERE EXISTS (SELECT FROM state.agent_inbox i
                  WHERE i.agent_turn_id = made.agent_turn_id AND i.project_id = :project_id
                    AND i.message_type IN {turn_types} AND i.channel_id <> :channel_id {by_key})
),
taken AS MATERIALIZED (  -- each card at its first place
    SELECT DISTINCT ON (f.card_id) f.card_id, f.place, f.position FROM found f ORDER BY f.card_id, f.place, f.position
),
refused AS MATERIALIZED (
    SELECT part.place, CASE WHEN part.card_id IS NULL THEN 'unknown_box' ELSE 'unknown_card' END AS code FROM part
    WHERE (part.card_id IS NULL AND (part.box_id NOT IN (SELECT held.box_id FROM held)
            OR state.is_abroad(:project_id, :channel_id, part.box_id)))
       OR (part.card_id IS NOT NULL AND NOT EXISTS (SELECT FROM found f WHERE f.place = part.place))
       OR part.place IN (SELECT f.place FROM found f LEFT JOIN abroad ON abroad.agent_turn_id = f.agent_turn_id
                         WHERE abroad.agent_turn_id IS NOT NULL
                            OR (f.agent_turn_id IS NULL AND f.channel_id <> :channel_id))
    ORDER BY part.place LIMIT 1
),
moved AS (  -- the box of a single card went away while this waited for it: another may have the card
    SELECT FROM part
    WHERE part.card_id IS NOT NULL AND part.box_id IS NOT NULL
      AND part.box_id NOT IN (SELECT held.box_id FROM held) LIMIT 1
),
full_of AS MATERIALIZED (
    SELECT t.cards, {full_of_boxes(t.cards)} AS code FROM (SELECT count(*) AS cards FROM taken) t
    WHERE EXISTS (SELECT FROM part) AND NOT EXISTS (SELECT FROM moved) AND NOT EXISTS (SELECT FROM refused)
      AND t.cards <= :card_limit::int
),
made AS (
    INSERT INTO public.boxes (box_id, tenant_id, parent_ids, request_digest, unused_of, unused_cards)
    SELECT :new_box_id::uuid, :project_id, coalesce((
               SELECT array_agg(DISTINCT part.box_id) FROM part WHERE part.box_id IS NOT NULL AND part.card_id IS NULL),
                                                    '{}'), :request_digest, :maker::text, f.cards
    FROM full_of f WHERE f.code IS NULL
    ON CONFLICT DO NOTHING
    RETURNING box_id
),
cards AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_calls, tool_call_id, metadata)
    SELECT c.card_id, :project_id, c.content, c.tool_calls, c.tool_call_id, c.metadata
    FROM made CROSS JOIN unnest(:card_ids::text[], :card_contents::jsonb[], :card_tool_calls::jsonb[],
                                :card_tool_call_ids::text[], :card_metadatas::jsonb[])
                         c (card_id, content, tool_calls, tool_call_id, metadata)
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT made.box_id, row_number() OVER (ORDER BY t.place, t.position), t.card_id FROM made CROSS JOIN taken t
)
SELECT CASE
           WHEN EXISTS (SELECT FROM made) THEN 'accepted'
           WHEN (SELECT e.same FROM earlier e) THEN 'duplicate'
           WHEN EXISTS (SELECT FROM earlier) THEN 'correlation_conflict'
           WHEN EXISTS (SELECT FROM moved) THEN 'again'
           WHEN EXISTS (SELECT FROM refused) THEN (SELECT r.code FROM refused r)
           WHEN (SELECT count(*) FROM taken) > :card_limit::int THEN 'too_many_cards'
           ELSE coalesce((SELECT f.code FROM full_of f), 'again')
       END AS verdict,
       (SELECT r.place FROM refused r) AS refused_place,
       CASE WHEN EXISTS (SELECT FROM made) THEN (SELECT count(*) FROM taken)
            ELSE (SELECT count(*) FROM public.box_cards p WHERE p.box_id = :new_box_id::uuid) END AS cards;

-- name: replace_boxes :one
-- Sets those of an agent's pointers in a channel that are given. It is outside the gate, so the last statement wins.
-- verdict: accepted | the code of a refusal.
WITH
held AS MATERIALIZED (  -- as in fork_box
    SELECT b.box_id FROM public.boxes b
    WHERE b.box_id = ANY (ARRAY[:memory_box_id::uuid, :output_box_id::uuid]) AND b.tenant_id = :project_id
    ORDER BY b.box_id FOR KEY SHARE
),
plan AS MATERIALIZED (  -- always one row
    SELECT CASE
               WHEN NOT EXISTS (SELECT FROM resource.project_agents a
                                WHERE a.agent_id = :agent_id AND a.project_id = :project_id)
               THEN 'unknown_agent'
               WHEN :memory_box_id::uuid IS NOT NULL AND (:memory_box_id::uuid NOT IN (SELECT held.box_id FROM held)
                    OR state.is_abroad(:project_id, :channel_id, :memory_box_id::uuid))
               THEN 'unknown_context_box'
               WHEN :output_box_id::uuid IS NOT NULL AND (:output_box_id::uuid NOT IN (SELECT held.box_id FROM held)
                    OR state.is_abroad(:project_id, :channel_id, :output_box_id::uuid)
                    OR state.is_read_abroad(:project_id, :channel_id, :output_box_id::uuid))
               THEN 'unknown_output_box'
               WHEN EXISTS (SELECT FROM held JOIN state.agent_state_head busy ON busy.output_box_id = held.box_id
                            WHERE busy.agent_id <> :agent_id OR busy.project_id <> :project_id) THEN 'output_box_busy'
               ELSE 'accepted'
           END AS verdict
),
pointed AS (
    INSERT INTO state.agent_state_pointers AS p
        (project_id, agent_id, memory_context_box_id, last_output_box_id, replaced_output_box_id)
    SELECT :project_id, :agent_id, :memory_box_id::uuid, :output_box_id::uuid, :output_box_id::uuid
    FROM plan WHERE plan.verdict = 'accepted'
    ON CONFLICT (agent_id, project_id) DO UPDATE SET
        memory_context_box_id = CASE WHEN :sets_memory::boolean THEN EXCLUDED.memory_context_box_id
                                     ELSE p.memory_context_box_id END,
        last_output_box_id = coalesce(EXCLUDED.last_output_box_id, p.last_output_box_id),
        replaced_output_box_id = coalesce(EXCLUDED.replaced_output_box_id, p.replaced_output_box_id),
        updated_at = now()
),
pointed_by_channel AS (  -- with what the channel had from the pointers above, of which it sees nothing else from now on
    INSERT INTO state.channel_pointers AS p (project_id, channel_id, agent_id,
                                             memory_context_box_id, last_output_box_id)
    SELECT :project_id, :channel_id, :agent_id, CASE WHEN :sets_memory::boolean THEN :memory_box_id::uuid
                                                     ELSE had.memory_context_box_id END,
           coalesce(:output_box_id::uuid, had.last_output_box_id)
    FROM plan CROSS JOIN state.channel_boxes(:project_id, :channel_id, :agent_id) had WHERE plan.verdict = 'accepted'
    ON CONFLICT (agent_id, channel_id, project_id) DO UPDATE SET
        memory_context_box_id = CASE WHEN :sets_memory::boolean THEN EXCLUDED.memory_context_box_id
                                     ELSE p.memory_context_box_id END,
        last_output_box_id = coalesce(:output_box_id::uuid, p.last_output_box_id), updated_at = now()
    RETURNING p.memory_context_box_id, p.last_output_box_id
)
SELECT plan.verdict, pointed.memory_context_box_id::text AS memory_context_box_id,
       pointed.last_output_box_id::text AS last_output_box_id
FROM plan LEFT JOIN pointed_by_channel pointed ON true;

-- name: agent_boxes :opt
-- The boxes that an agent's pointers in a channel name; no row for an agent that the project does not have.
SELECT p.memory_context_box_id::text AS memory_context_box_id, p.last_output_box_id::text AS last_output_box_id
FROM resource.project_agents a CROSS JOIN LATERAL state.channel_boxes(a.project_id, :channel_id, a.agent_id) p
WHERE a.agent_id = :agent_id AND a.project_id = :project_id;

-- name: put_conversation :one
-- Makes a conversation, gives it to an agent, or moves its pointer to a box with more or fewer cards.
-- verdict: accepted | duplicate | again (repeat the statement) | the code of a refusal.
SELECT w.verdict, nullif(w.of_agent, '') AS agent_id, w.box::text AS box_id, w.noted AS notes
FROM state.put_conversation(:project_id, :channel_id, :conversation_id, :agent_id::text,
                            :notes::jsonb, :box_id::text::uuid, :add_box_id::text::uuid,
                            :drop_card_ids::text[], :new_box_id::text::uuid, :card_limit::int,
                            :maker::text, :most::int) w;
