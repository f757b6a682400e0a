-- A turn that is run again from one of its steps (protocol §6, rerun): the copies of its boxes. The new turn is then an
-- enqueue.

-- name: copy_boxes_of_turn :one
-- Makes copies of the boxes of a turn that is over, as they were before one of its steps; without a step, before the
-- step that failed, or the first one. The context box is copied as far as the turn had read it, and the output box that
-- the step read as far as its row says; of a step that was never committed, up to its first card. Cards that the turn
-- had read and that are gone since refuse it.
-- verdict: accepted | known (a request under this correlation: nothing is copied) | again | the code of a refusal.
WITH
known AS MATERIALIZED (
    SELECT i.agent_id, state.as_count(i.payload -> 'rerun' ->> 'from_step') AS from_step FROM state.agent_inbox i
    WHERE i.correlation_id = :correlation_id AND i.project_id = :project_id AND i.message_type IN {turn_types} LIMIT 1
),
turn AS MATERIALIZED (
    SELECT i.agent_id, i.message_type, i.payload, coalesce(i.context_headers ->> 'CG-Sender', (
               SELECT c.metadata ->> 'author_id' FROM public.cards c
               WHERE c.card_id = :agent_turn_id || '-instruction' AND c.tenant_id = :project_id)) AS requester,
           o.agent_turn_id IS NOT NULL AS is_over,
           o.status, o.tool_result_card_id, o.started_at, o.ended_at,
           state.as_uuid(i.payload ->> 'context_box_id') AS context_box_id,
           coalesce(o.output_box_id, state.as_uuid(i.payload ->> 'output_box_id')) AS output_box_id
    FROM state.agent_inbox i
    LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id
    WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id
      AND i.channel_id = :channel_id AND i.message_type IN {turn_types}
),
steps AS MATERIALIZED (
    SELECT state.as_count(substring(s.step_id FROM '-s([0-9]+)$')) AS number, s.step_id, s.output_box_id,
           s.metadata, s.started_at, s.ended_at
    FROM state.agent_steps s WHERE s.agent_turn_id = :agent_turn_id AND s.project_id = :project_id
),
last AS MATERIALIZED (SELECT s.* FROM steps s ORDER BY s.number DESC LIMIT 1),
ended AS MATERIALIZED (
    -- always one row: the step in which the turn ended; of one that was ended asleep, the step that had made its calls
    SELECT coalesce(max(CASE WHEN l.metadata ->> 'next' = 'end' THEN l.number
               WHEN l.metadata ->> 'next' = 'suspend' AND (turn.tool_result_card_id IS NOT NULL OR EXISTS (
                    SELECT FROM state.turn_waiting_tools w
                    WHERE w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id AND w.step_id = l.step_id
                      AND w.wait_status NOT IN ('applied', 'expired'))) THEN l.number
               ELSE l.number + 1 END), 1) AS number
    FROM turn CROSS JOIN last l
),
asked AS MATERIALIZED (
    SELECT coalesce(:from_step::int, CASE turn.status WHEN 'failed' THEN ended.number ELSE 1 END) AS step
    FROM turn CROSS JOIN ended
),
reading AS MATERIALIZED (
    -- what the step read of the output box; where it was never committed, up to its first card, or the turn's end
    SELECT coalesce(s.output_box_id, turn.output_box_id) AS box_id,
           coalesce(state.as_count(s.metadata ->> 'output_position'), (
               SELECT min(b.position) - 1 FROM public.box_cards b CROSS JOIN LATERAL (
                   SELECT c.metadata ->> 'type' AS type, c.metadata ->> 'step_id' AS step_id FROM public.cards c
                   WHERE c.card_id = b.card_id AND c.metadata ->> 'agent_turn_id' = :agent_turn_id {by_key}) c
               WHERE b.box_id = coalesce(s.output_box_id, turn.output_box_id)
                 AND (asked.step = 1 OR c.step_id = :agent_turn_id || '-s' || asked.step
                      OR (asked.step = ended.number AND c.type = 'task.deliverable')))) AS upto
    FROM turn CROSS JOIN ended CROSS JOIN asked LEFT JOIN steps s ON s.number = asked.step
),
held AS MATERIALIZED (  -- as in fork_box
    SELECT b.box_id FROM public.boxes b
    WHERE b.box_id IN (SELECT x.box_id FROM turn CROSS JOIN reading
                       CROSS JOIN LATERAL (VALUES (turn.context_box_id), (reading.box_id)) x (box_id))
      AND b.tenant_id = :project_id AND NOT EXISTS (SELECT FROM known)
    ORDER BY b.box_id FOR KEY SHARE
),
ranges AS MATERIALIZED (  -- the context box of a turn that had pinned nothing has no card that was made later
    SELECT reading.box_id, :output_copy_id::text::uuid AS copy_id, reading.upto FROM reading
    UNION ALL
    SELECT turn.context_box_id, :context_copy_id::text::uuid, coalesce(
               (SELECT state.as_count(s.metadata -> 'turn_config' ->> 'context_position')
                FROM steps s WHERE s.number = 1),
               (SELECT max(b.position) FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
                WHERE b.box_id = turn.context_box_id AND c.created_at <= coalesce(turn.started_at, turn.ended_at)), 0)
    FROM turn
),
copied AS MATERIALIZED (
    SELECT r.copy_id, b.position, b.card_id FROM ranges r
    JOIN public.box_cards b ON b.box_id = r.box_id AND b.position <= r.upto
        AND b.box_id IN (SELECT held.box_id FROM held)
    UNION ALL  -- the steers that the step took entered the box with its begin, as this attempt read it or behind that
    SELECT r.copy_id, r.upto + row_number() OVER (ORDER BY s.seq), s.steer_id FROM asked
    JOIN state.steers s ON s.step_id = :agent_turn_id || '-s' || asked.step
    JOIN ranges r ON r.copy_id = :output_copy_id::text::uuid
    WHERE s.agent_turn_id = :agent_turn_id AND s.status = 'applied' AND NOT EXISTS (
        SELECT FROM public.box_cards b WHERE b.box_id = r.box_id AND b.card_id = s.steer_id AND b.position <= r.upto)
),
gone AS MATERIALIZED (  -- what the step had read and cannot be read now
    SELECT EXISTS (
        SELECT FROM copied p JOIN public.cards c ON c.card_id = p.card_id
        WHERE NOT state.is_alive(c.expires_at, c.deleted_at)
          AND least(c.expires_at, c.deleted_at) > coalesce((SELECT s.started_at
                                                            FROM steps s JOIN asked ON asked.step = s.number),
                                                          (SELECT l.ended_at
                                                           FROM last l), turn.started_at, turn.ended_at))
        OR EXISTS (SELECT FROM ranges r WHERE r.upto IS NULL
                   OR r.upto <> (SELECT count(*) FROM copied p
                                 WHERE p.copy_id = r.copy_id AND p.position <= r.upto)) AS any
    FROM turn
),
plan AS MATERIALIZED (  -- always one row
    SELECT CASE
               WHEN EXISTS (SELECT FROM known) THEN 'known'
               WHEN turn.agent_id IS NULL THEN 'unknown_turn'
               WHEN NOT :operates::boolean AND turn.requester IS DISTINCT FROM :caller THEN 'not_yours'
               WHEN NOT turn.is_over THEN 'turn_not_over'
               WHEN turn.message_type <> 'turn' THEN 'not_repeatable'
               WHEN asked.step NOT BETWEEN 1 AND ended.number THEN 'unknown_step'
               WHEN gone.any OR (SELECT count(*) FROM held) < 2 THEN 'step_gone'
               ELSE 'accepted' END AS verdict
    FROM (SELECT) AS always LEFT JOIN turn ON true LEFT JOIN ended ON true
    LEFT JOIN asked ON true LEFT JOIN gone ON true
),
made AS (
    INSERT INTO public.boxes (box_id, tenant_id, parent_ids)
    SELECT r.copy_id, :project_id, ARRAY[r.box_id] FROM plan CROSS JOIN ranges r WHERE plan.verdict = 'accepted'
    RETURNING box_id
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT made.box_id, p.position, p.card_id FROM made JOIN copied p ON p.copy_id = made.box_id
)
SELECT plan.verdict, coalesce((SELECT known.agent_id FROM known), turn.agent_id) AS agent_id,
       coalesce((SELECT known.from_step FROM known), asked.step, 1) AS from_step,
       ended.number AS last_step, coalesce(turn.payload -> 'runtime_config', '{}') AS runtime_config,
       (SELECT c.content -> 'data' FROM public.cards c
        WHERE c.card_id = turn.payload #>> '{runtime_config,card_id}' AND c.tenant_id = :project_id) AS config_text,
       coalesce(turn.payload -> 'rerun' -> 'line', '[]') AS line,
       (SELECT p.name FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
        JOIN resource.profiles p ON lower(p.name) = lower(c.content -> 'data' ->> 'name') AND p.project_id = :project_id
        WHERE b.box_id = state.as_uuid(turn.payload ->> 'profile_box_id')
          AND c.tenant_id = :project_id AND c.metadata ->> 'type' = 'sys.profile'
        ORDER BY b.position DESC LIMIT 1) AS profile_name
FROM plan LEFT JOIN turn ON true LEFT JOIN ended ON true LEFT JOIN asked ON true;
