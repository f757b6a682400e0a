-- Asks a person under a call that its tool runs, once for each key. asked: key, digest (the hash of the question),
-- message, response_schema, requester_may_decide, open_seconds, most_open. The call's time stands still until the
-- question is closed: its deadline is put off.
-- verdict: accepted | duplicate (asked before, whatever became of it) | key_conflict | unknown_call | parent_over |
-- parent_stopping | not_sent | too_many_questions. It runs with the caller's rights: a worker's tools ask through a
-- bridge. Lock order: protocol §12.
CREATE OR REPLACE FUNCTION state.ask_under_call(project text, call text, asked jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    h state.agent_state_head;
    w state.turn_waiting_tools;
    t state.interrupts;
    interrupt text := 'int-' || call || '~' || (asked ->> 'key');
    refused text;
    left_over float8;
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('verdict', 'unknown_call');
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x
    WHERE x.agent_id = w.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    SELECT x.* INTO t FROM state.interrupts x WHERE x.interrupt_id = interrupt AND x.project_id = project;
    IF FOUND THEN
        RETURN jsonb_build_object('verdict', CASE t.call_digest WHEN asked ->> 'digest' THEN 'duplicate'
            ELSE 'key_conflict' END);
    END IF;
    SELECT x.* INTO w FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    refused := state.refused_under_call(w, h);
    left_over := coalesce(w.left_seconds, extract(epoch FROM coalesce(w.deadline,
        h.resume_deadline) - clock_timestamp())::float8, 120);
    IF refused IS NOT NULL OR left_over <= 0 THEN
        RETURN jsonb_build_object('verdict', CASE WHEN left_over <= 0 THEN 'parent_over' ELSE refused END);
    ELSIF (asked ->> 'most_open')::int <= (SELECT count(*) FROM state.interrupts q
        WHERE q.agent_turn_id = w.agent_turn_id
                                             AND q.tool_call_id = call AND q.call_key IS NOT NULL
                                             AND q.status = 'open') THEN
        RETURN jsonb_build_object('verdict', 'too_many_questions');
    END IF;
    INSERT INTO state.interrupts (interrupt_id, project_id, channel_id, agent_id, agent_turn_id, step_id, tool_call_id,
                                  tool_name, reason, message, allowed_decisions, response_schema, requester,
                                  requester_may_decide, wait_seconds, expires_at, call_key, call_digest, created_at)
    SELECT interrupt, project, coalesce(h.active_channel_id, 'public'), w.agent_id, w.agent_turn_id, w.step_id, call,
           w.tool_name, 'input_required', asked ->> 'message', ARRAY['respond', 'reject'],
           nullif(asked -> 'response_schema', 'null'), coalesce((
               SELECT r.context_headers ->> 'CG-Sender' FROM state.turn_nodes n
               JOIN state.agent_inbox r ON r.agent_turn_id = n.root_turn_id
               WHERE n.agent_turn_id = w.agent_turn_id AND r.message_type IN ('turn', 'ui_action') LIMIT 1), (
               SELECT i.context_headers ->> 'CG-Sender' FROM state.agent_inbox i WHERE i.inbox_id = h.active_inbox_id)),
           (asked ->> 'requester_may_decide')::boolean, left_over,
           clock_timestamp() + make_interval(secs => (asked ->> 'open_seconds')::float8), asked ->> 'key',
           asked ->> 'digest', clock_timestamp()  -- behind the lock, as the moments of what people say are
    RETURNING * INTO t;
    UPDATE state.turn_waiting_tools x SET left_seconds = left_over
    WHERE x.tool_call_id = call AND x.project_id = project;
    RETURN jsonb_build_object('verdict', 'accepted', 'deadline', state.resume_call(w), 'expires_at', t.expires_at);
END $$;
