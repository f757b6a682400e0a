-- The threads that an export of some agents holds: those in which a turn of theirs worked.
CREATE OR REPLACE FUNCTION state.agent_threads(project text, agents text[]) RETURNS TABLE (thread_id text)
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT m.thread_id FROM state.agent_inbox i JOIN state.thread_messages m ON m.agent_turn_id =
        i.agent_turn_id
    WHERE i.project_id = project AND i.agent_id = ANY (agents)
$$;
