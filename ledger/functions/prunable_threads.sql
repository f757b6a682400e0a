-- Threads that ended before a moment and owe nobody anything: every answer announced, every turn of a message over.
-- OFFSET 0 keeps each subquery a look-up by key for each outer row, also in a plan for large batches, or in one that
-- was made while tables were empty (docs/decisions/0006-plans-that-stay-right.md).
CREATE OR REPLACE FUNCTION state.prunable_threads(before timestamptz) RETURNS TABLE (thread_id text, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT t.thread_id, t.project_id FROM state.threads t
    WHERE t.status = 'ended' AND t.ended_at < before
      AND NOT EXISTS (SELECT FROM state.thread_replies r WHERE r.thread_id = t.thread_id
          AND r.announced_at IS NULL OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.thread_messages m JOIN state.agent_inbox i ON i.correlation_id = m.message_id
              AND i.project_id = m.project_id AND i.message_type = 'turn'
          WHERE m.thread_id = t.thread_id AND NOT EXISTS (
              SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = i.agent_turn_id OFFSET 0) OFFSET 0)
$$;
