-- What people say to a turn while it runs (protocol §6, steer). Steps take and settle steers (turns/transitions.sql);
-- the end of a turn skips what is left, by a trigger.

-- name: steer_turn :one
-- Accepts a steer: its row, and its card, which begin_step puts into the output box. A trigger of state.steers writes
-- the inbox row, of the steer's id, and the edge with it, and settles the row with the steer. The head is locked and
-- changed, so that of a steer and an end at once one sees the other; for a queued turn its row is locked instead, and
-- the lease waits. Nothing is rung: the next step takes it.
-- verdict: accepted | duplicate | again | the code of a refusal.
WITH
turn AS MATERIALIZED (
    SELECT i.inbox_id, i.agent_id, i.channel_id, i.status, i.message_type, i.context_headers,
           o.agent_turn_id IS NOT NULL AS over
    FROM state.agent_inbox i LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id
        AND o.project_id = i.project_id
    WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id
      AND i.channel_id = :channel_id AND i.message_type IN {turn_types}
),
earlier AS MATERIALIZED (
    SELECT s.steer_id, s.status, s.request_digest FROM state.steers s
    WHERE s.agent_turn_id = :agent_turn_id AND s.correlation_id = :correlation_id AND s.project_id = :project_id
),
judged AS MATERIALIZED (
    SELECT CASE WHEN turn.inbox_id IS NULL THEN 'unknown_turn'
                WHEN NOT :operates::boolean AND turn.context_headers ->> 'CG-Sender' IS DISTINCT FROM :principal
                     THEN 'not_yours'
                WHEN earlier.request_digest <> :request_digest THEN 'correlation_conflict'
                WHEN earlier.steer_id IS NOT NULL THEN 'duplicate'
                WHEN turn.message_type = 'ui_action' THEN 'asks_no_model'
                WHEN turn.over OR turn.status IN ('skipped', 'error') THEN 'already_final'
                WHEN (SELECT count(*) FROM state.steers s
                      WHERE s.agent_turn_id = :agent_turn_id AND s.status IN ('waiting', 'taken'))
                     >= :most_waiting::int THEN 'too_many_steers'
                ELSE 'accepted' END AS verdict
    FROM (SELECT) AS always LEFT JOIN turn ON true LEFT JOIN earlier ON true
),
head AS MATERIALIZED (
    SELECT h.agent_id FROM judged JOIN turn ON judged.verdict = 'accepted'
    JOIN state.agent_state_head h ON h.agent_id = turn.agent_id AND h.project_id = :project_id
    WHERE h.active_agent_turn_id = :agent_turn_id
    FOR NO KEY UPDATE OF h
),
queued AS MATERIALIZED (
    SELECT i.inbox_id FROM judged JOIN turn ON judged.verdict = 'accepted' AND turn.status = 'queued'
    JOIN state.agent_inbox i ON i.inbox_id = turn.inbox_id
    WHERE i.status = 'queued' AND (SELECT count(*) FROM head) = 0
    FOR NO KEY UPDATE OF i
),
steer AS (
    INSERT INTO state.steers (steer_id, project_id, agent_id, agent_turn_id, correlation_id,
                              priority, due, steered_by, request_digest)
    SELECT :steer_id, :project_id, turn.agent_id, :agent_turn_id, :correlation_id, :priority,
           :priority = 'asap', :principal, :request_digest
    FROM turn WHERE EXISTS (SELECT FROM head) OR EXISTS (SELECT FROM queued)
    ON CONFLICT DO NOTHING
    RETURNING steer_id, status, created_at
),
card AS (
    INSERT INTO public.cards (card_id, tenant_id, content, metadata)
    SELECT steer.steer_id, :project_id, :content::jsonb,
           :metadata::jsonb
               || jsonb_build_object('trace_id', split_part(turn.context_headers ->> 'traceparent', '-', 2))
    FROM steer CROSS JOIN turn
),
noted AS (  -- an end that waits for our lock compares this
    UPDATE state.agent_state_head h SET updated_at = greatest(clock_timestamp(),
                                                              h.updated_at + interval '1 microsecond')
    FROM head WHERE h.agent_id = head.agent_id AND h.project_id = :project_id AND EXISTS (SELECT FROM steer)
)
SELECT CASE WHEN judged.verdict = 'accepted' AND steer.steer_id IS NULL THEN 'again' ELSE judged.verdict END AS verdict,
       coalesce(steer.steer_id, earlier.steer_id) AS steer_id, coalesce(steer.status, earlier.status) AS steer_status,
       turn.agent_id, turn.channel_id, turn.context_headers
FROM judged LEFT JOIN turn ON true LEFT JOIN steer ON true LEFT JOIN earlier ON true;
