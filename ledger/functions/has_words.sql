-- Whether a principal has words in the call that a question is about (protocol §13.3): what it asked for, said,
-- answered, edited, reported or rejected with a message in the turn, in those above it before they asked, in those
-- below any of these that had ended before, and in turns that these run again. All of it was there before the question
-- was, so that the decision and a later look, such as the audit's, find the same: a steer counts from the moment when a
-- step takes it, and one that waits while the turn sleeps does not. It looks as the statement that calls it does.
CREATE OR REPLACE FUNCTION state.has_words(t state.interrupts, who text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        WITH RECURSIVE fed (agent_turn_id, until, above) AS (
            SELECT t.agent_turn_id, t.created_at, true
            UNION
            SELECT x.agent_turn_id, x.until, x.above FROM fed CROSS JOIN LATERAL (
                SELECT n.parent_turn_id, i.created_at, true FROM state.turn_nodes n
                JOIN state.agent_inbox i ON i.agent_turn_id = n.agent_turn_id
                    AND i.message_type IN ('turn', 'ui_action')
                WHERE fed.above AND n.agent_turn_id = fed.agent_turn_id AND n.parent_turn_id IS NOT NULL
                UNION ALL
                SELECT n.agent_turn_id, fed.until, false FROM state.turn_nodes n
                CROSS JOIN LATERAL (SELECT y.ended_at FROM state.turn_outcomes y
                                    WHERE y.agent_turn_id = n.agent_turn_id LIMIT 1) o
                WHERE n.parent_turn_id = fed.agent_turn_id AND o.ended_at <= fed.until
                UNION ALL
                SELECT l.agent_turn_id, fed.until, true FROM state.agent_inbox i
                CROSS JOIN LATERAL jsonb_array_elements_text(i.payload -> 'rerun' -> 'line') l (agent_turn_id)
                WHERE i.agent_turn_id = fed.agent_turn_id AND i.message_type = 'turn'
                  AND i.payload ? 'rerun') x (agent_turn_id, until, above)
        )
        SELECT FROM fed WHERE EXISTS (
                SELECT FROM state.agent_inbox i
                WHERE i.agent_turn_id = fed.agent_turn_id AND i.project_id = t.project_id
                  AND (i.message_type IN ('turn', 'ui_action')
                       OR (i.message_type IN ('tool_result', 'timeout') AND i.created_at <= fed.until)
                       OR (i.message_type = 'steer' AND i.processed_at <= fed.until))  -- since a step took it
                  AND i.context_headers ->> 'CG-Sender' = who OFFSET 0)
            OR EXISTS (
                SELECT FROM state.interrupts q WHERE q.agent_turn_id = fed.agent_turn_id AND q.decided_by = who
                  AND (q.decision IN ('edit', 'respond') OR q.comment IS NOT NULL)
                  AND q.decided_at <= fed.until OFFSET 0));
END $$;
