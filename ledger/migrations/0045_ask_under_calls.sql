-- A tool that runs a call asks people under it (protocol §13.8): its question is an interrupt that does not hold the call.

-- call_key: the tool's own name for its question; null for all others, which hold their call or ask whether it was done.
ALTER TABLE state.interrupts ADD COLUMN call_key text, ADD COLUMN call_digest text, ADD COLUMN response jsonb;
COMMENT ON COLUMN state.interrupts.call_digest IS 'with call_key: the hash of the question, by which a repeat is known';
COMMENT ON COLUMN state.interrupts.response IS
    'with call_key: what a person responded, which the tool reads; of other questions the result card has it';
ALTER TABLE state.turn_waiting_tools ADD COLUMN left_seconds float8;
COMMENT ON COLUMN state.turn_waiting_tools.left_seconds IS
    'what was left of its time as its tool asked a person; null unless such a question is open';

-- The time of a call goes on once no question of its tool is open; else its deadline is put off until the last of them, and what was left
-- after that. The head's deadline follows. Of a call that waits no more nothing is changed. Returns the call's deadline. Head and waiting
-- row are locked.
CREATE FUNCTION state.resume_call(w state.turn_waiting_tools) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz;
    due timestamptz;
BEGIN
    SELECT max(q.expires_at) INTO until FROM state.interrupts q
    WHERE q.agent_turn_id = w.agent_turn_id AND q.tool_call_id = w.tool_call_id AND q.call_key IS NOT NULL AND q.status = 'open';
    UPDATE state.turn_waiting_tools x SET updated_at = now(), left_seconds = CASE WHEN until IS NOT NULL THEN x.left_seconds END,
           deadline = least(coalesce(until, clock_timestamp()) + make_interval(secs => x.left_seconds), state.until_of_turn(x.agent_turn_id))
    WHERE x.tool_call_id = w.tool_call_id AND x.project_id = w.project_id AND x.wait_status = 'waiting' AND x.left_seconds IS NOT NULL
    RETURNING x.deadline INTO due;
    -- updated_at: a timeout that waits for the lock would not see this call's deadline
    UPDATE state.agent_state_head h SET updated_at = clock_timestamp(), resume_deadline = (
        SELECT min(coalesce(o.deadline, h.resume_deadline)) FROM state.turn_waiting_tools o
        WHERE o.agent_turn_id = w.agent_turn_id AND o.project_id = w.project_id AND o.wait_status = 'waiting' AND o.held_by IS NULL)
    WHERE h.agent_id = w.agent_id AND h.project_id = w.project_id AND due IS NOT NULL;
    RETURN due;
END $$;

-- Asks a person under a call that its tool runs, once for each key. asked: key, digest (the hash of the question), message, response_schema,
-- requester_may_decide, open_seconds, most_open. The call's time stands still until the question is closed: its deadline is put off.
-- verdict: accepted | duplicate (asked before, whatever became of it) | key_conflict | unknown_call | parent_over | parent_stopping |
-- not_sent | too_many_questions. It runs with the caller's rights: a worker's tools ask through a bridge. Lock order as in 0029.
CREATE FUNCTION state.ask_under_call(project text, call text, asked jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    h state.agent_state_head;
    w state.turn_waiting_tools;
    t state.interrupts;
    interrupt text := 'int-' || call || '~' || (asked ->> 'key');
    stopping timestamptz;
    left_over float8;
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('verdict', 'unknown_call');
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x WHERE x.agent_id = w.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    SELECT x.* INTO t FROM state.interrupts x WHERE x.interrupt_id = interrupt AND x.project_id = project;
    IF FOUND THEN
        RETURN jsonb_build_object('verdict', CASE t.call_digest WHEN asked ->> 'digest' THEN 'duplicate' ELSE 'key_conflict' END);
    END IF;
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    SELECT n.stopping_at INTO stopping FROM state.turn_nodes n WHERE n.agent_turn_id = w.agent_turn_id FOR SHARE;
    left_over := coalesce(w.left_seconds, extract(epoch FROM coalesce(w.deadline, h.resume_deadline) - clock_timestamp())::float8, 120);
    IF w.wait_status <> 'waiting' OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id OR h.turn_epoch <> w.turn_epoch
       OR h.status <> 'suspended' OR left_over <= 0 OR EXISTS (  -- it is timed out
           SELECT FROM state.agent_inbox i WHERE i.correlation_id = call AND i.project_id = project AND i.message_type = 'timeout') THEN
        RETURN jsonb_build_object('verdict', 'parent_over');
    ELSIF w.held_by IS NOT NULL THEN
        RETURN jsonb_build_object('verdict', 'not_sent');
    ELSIF stopping IS NOT NULL
       OR EXISTS (SELECT FROM state.agent_inbox i WHERE i.correlation_id IN (w.agent_turn_id, 'cascade-' || w.agent_turn_id)
                    AND i.project_id = project AND i.message_type = 'stop' AND i.archived_at IS NULL) THEN
        RETURN jsonb_build_object('verdict', 'parent_stopping');
    ELSIF (asked ->> 'most_open')::int <= (SELECT count(*) FROM state.interrupts q WHERE q.agent_turn_id = w.agent_turn_id
                                             AND q.tool_call_id = call AND q.call_key IS NOT NULL AND q.status = 'open') THEN
        RETURN jsonb_build_object('verdict', 'too_many_questions');
    END IF;
    INSERT INTO state.interrupts (interrupt_id, project_id, channel_id, agent_id, agent_turn_id, step_id, tool_call_id, tool_name, reason,
                                  message, allowed_decisions, response_schema, requester, requester_may_decide, wait_seconds, expires_at,
                                  call_key, call_digest)
    SELECT interrupt, project, coalesce(h.active_channel_id, 'public'), w.agent_id, w.agent_turn_id, w.step_id, call, w.tool_name,
           'input_required', asked ->> 'message', ARRAY['respond', 'reject'], nullif(asked -> 'response_schema', 'null'), coalesce((
               SELECT r.context_headers ->> 'CG-Sender' FROM state.turn_nodes n JOIN state.agent_inbox r ON r.agent_turn_id = n.root_turn_id
               WHERE n.agent_turn_id = w.agent_turn_id AND r.message_type IN ('turn', 'ui_action') LIMIT 1), (
               SELECT i.context_headers ->> 'CG-Sender' FROM state.agent_inbox i WHERE i.inbox_id = h.active_inbox_id)),
           (asked ->> 'requester_may_decide')::boolean, left_over,
           clock_timestamp() + make_interval(secs => (asked ->> 'open_seconds')::float8), asked ->> 'key', asked ->> 'digest'
    RETURNING * INTO t;
    UPDATE state.turn_waiting_tools x SET left_seconds = left_over WHERE x.tool_call_id = call AND x.project_id = project;
    RETURN jsonb_build_object('verdict', 'accepted', 'deadline', state.resume_call(w), 'expires_at', t.expires_at);
END $$;

-- Withdraws what its tool has asked people under a call that waits no more, whatever answered or dropped it.
CREATE FUNCTION state.withdraw_questions() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE state.interrupts x SET status = 'withdrawn', decided_at = clock_timestamp()
    WHERE x.agent_turn_id = NEW.agent_turn_id AND x.tool_call_id = NEW.tool_call_id AND x.call_key IS NOT NULL AND x.status = 'open';
    NEW.left_seconds := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER questions_withdrawn BEFORE UPDATE OF wait_status ON state.turn_waiting_tools FOR EACH ROW
    WHEN (OLD.left_seconds IS NOT NULL AND NEW.wait_status <> 'waiting')
    EXECUTE FUNCTION state.withdraw_questions();

-- As before; what a tool has asked under its call is answered in its own row, and settles nothing.
CREATE OR REPLACE FUNCTION state.decide_interrupt(project text, channel text, interrupt text, who text, wanted text, digest text, asked jsonb)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    t state.interrupts;
    h state.agent_state_head;
    w state.turn_waiting_tools;
    stopping timestamptz;
    changed boolean := false;
    due timestamptz;
    place bigint;
BEGIN
    SELECT x.* INTO t FROM state.interrupts x
    WHERE x.interrupt_id = interrupt AND x.project_id = project AND x.channel_id = channel;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('verdict', 'unknown_interrupt');
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x WHERE x.agent_id = t.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    SELECT x.* INTO w FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = t.tool_call_id AND x.project_id = project FOR NO KEY UPDATE;
    SELECT x.* INTO t FROM state.interrupts x WHERE x.interrupt_id = interrupt FOR NO KEY UPDATE;
    IF t.status = 'resolved' THEN
        RETURN jsonb_build_object(
            'verdict', CASE WHEN (t.decided_by, t.decision, t.decision_digest) = (who, wanted, asked ->> 'digest') THEN 'duplicate'
                            ELSE 'already_decided' END,
            'decision', t.decision, 'decided_by', t.decided_by, 'tool_changed', t.tool_changed);
    ELSIF t.status IN ('expired', 'withdrawn') THEN
        RETURN jsonb_build_object('verdict', t.status);
    END IF;
    IF h.active_agent_turn_id IS DISTINCT FROM t.agent_turn_id OR h.status <> 'suspended' OR h.turn_epoch <> w.turn_epoch
       OR w.wait_status IS DISTINCT FROM 'waiting' OR w.held_by IS DISTINCT FROM interrupt AND t.call_key IS NULL
       OR EXISTS (SELECT FROM state.agent_inbox i WHERE i.correlation_id IN (t.agent_turn_id, 'cascade-' || t.agent_turn_id)
                    AND i.project_id = project AND i.message_type = 'stop' AND i.archived_at IS NULL) THEN
        RETURN jsonb_build_object('verdict', 'withdrawn');
    END IF;
    SELECT n.stopping_at INTO stopping FROM state.turn_nodes n WHERE n.agent_turn_id = t.agent_turn_id FOR SHARE;
    IF stopping IS NOT NULL THEN
        RETURN jsonb_build_object('verdict', 'withdrawn');
    ELSIF t.expires_at <= clock_timestamp() THEN
        RETURN jsonb_build_object('verdict', 'expired');
    ELSIF t.requester = who AND NOT t.requester_may_decide THEN
        RETURN jsonb_build_object('verdict', 'own_request');
    ELSIF wanted <> ALL (t.allowed_decisions) THEN
        RETURN jsonb_build_object('verdict', 'decision_not_allowed');
    ELSIF t.action_digest IS DISTINCT FROM digest THEN
        RETURN jsonb_build_object('verdict', 'digest_mismatch');
    END IF;
    IF t.call_key IS NOT NULL THEN  -- its tool waits for the answer, and reports the call
        UPDATE state.interrupts x SET status = 'resolved', decision = wanted, decision_digest = asked ->> 'digest', decided_by = who,
               comment = nullif(asked ->> 'message', ''), decided_at = clock_timestamp(),
               response = CASE wanted WHEN 'respond' THEN asked -> 'response' END
        WHERE x.interrupt_id = interrupt;
        RETURN jsonb_build_object('verdict', 'accepted', 'decision', wanted, 'decided_by', who, 'tool_changed', false, 'sent', false,
                                  'deadline', state.resume_call(w));
    END IF;
    IF wanted IN ('approve', 'edit') THEN
        changed := t.tool_pin IS NOT NULL AND NOT EXISTS (
            SELECT FROM resource.tools x WHERE x.tool_name = t.tool_name AND x.project_id = project
              AND x.target_subject IS NOT DISTINCT FROM t.tool_pin ->> 'target_subject'
              AND coalesce(nullif(x.parameters, 'null'), '{}') = t.tool_pin -> 'parameters')
            AND (t.tool_pin ->> 'target_subject' NOT LIKE '%.cmd.sys.pmo.internal.%'  -- a delegating tool needs no row
                 OR EXISTS (SELECT FROM resource.tools x WHERE x.tool_name = t.tool_name AND x.project_id = project));
        changed := changed OR (wanted = 'edit' AND asked -> 'card' IS NULL);  -- whoever checked the edit found no tool
        IF changed THEN
            PERFORM state.answer_held(w, 'decide-' || interrupt, t.channel_id, 'system', state.unsent_result('failed', 'tool_changed',
                'the tool was changed after a person was asked about this call: it was not sent'));
        END IF;
    ELSIF wanted = 'reject' THEN
        PERFORM state.answer_held(w, 'decide-' || interrupt, t.channel_id, 'sys.people', state.unsent_result('failed', 'rejected',
            coalesce(nullif(asked ->> 'message', ''), 'a person rejected this call')));
    ELSE
        PERFORM state.answer_held(w, 'decide-' || interrupt, t.channel_id, 'sys.people', jsonb_build_object(
            '__type__', 'ToolResultContent', 'status', 'success', 'after_execution', state.after_execution_of(project, w.tool_name),
            'result', jsonb_build_object('value', asked -> 'response'), 'error', NULL));
    END IF;
    IF wanted = 'edit' AND NOT changed THEN
        SELECT greatest(h.output_position, max(b.position)) + 1 INTO place FROM public.box_cards b WHERE b.box_id = h.output_box_id;
        INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
        VALUES (asked -> 'card' ->> 'card_id', project, asked -> 'card' -> 'content', w.tool_call_id, asked -> 'card' -> 'metadata');
        INSERT INTO public.box_cards (box_id, position, card_id) VALUES (h.output_box_id, place, asked -> 'card' ->> 'card_id');
    END IF;
    IF wanted IN ('approve', 'edit') AND NOT changed THEN
        UPDATE state.turn_waiting_tools x SET held_by = NULL, updated_at = now(),
               deadline = clock_timestamp() + make_interval(secs => t.wait_seconds),
               call_card_id = coalesce(CASE wanted WHEN 'edit' THEN asked -> 'card' ->> 'card_id' END, x.call_card_id)
        WHERE x.tool_call_id = w.tool_call_id AND x.project_id = project
        RETURNING x.deadline INTO due;
        -- updated_at: a timeout of other calls, which waits for the lock, would not see this one's deadline
        UPDATE state.agent_state_head x SET resume_deadline = least(x.resume_deadline, due), updated_at = clock_timestamp(),
               output_position = coalesce(place, x.output_position)
        WHERE x.agent_id = t.agent_id AND x.project_id = project;
    ELSE
        UPDATE state.turn_waiting_tools x SET held_by = NULL WHERE x.tool_call_id = w.tool_call_id AND x.project_id = project;
    END IF;
    UPDATE state.interrupts x SET status = 'resolved', decision = wanted, decision_digest = asked ->> 'digest', decided_by = who,
           comment = nullif(asked ->> 'message', ''), tool_changed = changed, decided_at = clock_timestamp(),
           edited_digest = CASE wanted WHEN 'edit' THEN asked ->> 'action_digest' END
    WHERE x.interrupt_id = interrupt;
    RETURN jsonb_build_object('verdict', 'accepted', 'decision', wanted, 'decided_by', who, 'tool_changed', changed,
                              'sent', due IS NOT NULL, 'deadline', due);
END $$;

-- As before; a question of a tool is closed, and its call's time goes on.
CREATE OR REPLACE FUNCTION state.expire_interrupt(interrupt text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    t state.interrupts;
    w state.turn_waiting_tools;
BEGIN
    SELECT x.* INTO t FROM state.interrupts x WHERE x.interrupt_id = interrupt;
    PERFORM FROM state.agent_state_head x WHERE x.agent_id = t.agent_id AND x.project_id = t.project_id FOR NO KEY UPDATE;
    SELECT x.* INTO w FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = t.tool_call_id AND x.project_id = t.project_id FOR NO KEY UPDATE;
    SELECT x.* INTO t FROM state.interrupts x WHERE x.interrupt_id = interrupt FOR NO KEY UPDATE;
    IF t.status IS DISTINCT FROM 'open' OR t.expires_at > clock_timestamp() THEN
        RETURN false;
    END IF;
    IF t.call_key IS NOT NULL THEN
        UPDATE state.interrupts x SET status = 'expired', decided_by = 'system', decided_at = clock_timestamp()
        WHERE x.interrupt_id = interrupt;
        PERFORM state.resume_call(w);
        RETURN true;
    END IF;
    IF w.wait_status = 'waiting' AND w.held_by = interrupt THEN
        PERFORM state.answer_held(w, 'decide-' || interrupt, t.channel_id, 'system', CASE t.reason
            WHEN 'input_required' THEN state.unsent_result('timeout', 'no_answer', 'nobody answered in time')
            WHEN 'confirmation' THEN state.unsent_result('failed', 'outcome_unknown',
                'nobody said in time whether this call was done: it was not repeated')
            ELSE state.unsent_result('failed', 'approval_expired', 'nobody approved this call in time: it was not sent') END);
        UPDATE state.turn_waiting_tools x SET held_by = NULL WHERE x.tool_call_id = w.tool_call_id AND x.project_id = w.project_id;
    END IF;
    UPDATE state.interrupts x SET status = 'expired', decided_by = 'system', decided_at = clock_timestamp()
    WHERE x.interrupt_id = interrupt;
    RETURN true;
END $$;

-- As before; a call whose tool asks a person is not in doubt.
CREATE OR REPLACE FUNCTION state.settle_unknown(
    project text, call text, began_by text, question text, digest text, asks boolean, open_seconds float8) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    h state.agent_state_head;
    w state.turn_waiting_tools;
    known state.interrupts;
    stopping timestamptz;
    interrupt text;
    until timestamptz := clock_timestamp() + make_interval(secs => open_seconds);
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    SELECT x.* INTO h FROM state.agent_state_head x WHERE x.agent_id = w.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    SELECT n.stopping_at INTO stopping FROM state.turn_nodes n WHERE n.agent_turn_id = w.agent_turn_id FOR SHARE;
    IF w.wait_status IS DISTINCT FROM 'waiting' OR w.held_by IS NOT NULL OR w.left_seconds IS NOT NULL OR w.begun_by IS DISTINCT FROM began_by
       OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id OR h.turn_epoch <> w.turn_epoch OR h.status <> 'suspended'
       OR stopping IS NOT NULL
       OR EXISTS (SELECT FROM state.agent_inbox i WHERE i.correlation_id IN (w.agent_turn_id, 'cascade-' || w.agent_turn_id)
                    AND i.project_id = project AND i.message_type = 'stop' AND i.archived_at IS NULL) THEN
        RETURN jsonb_build_object('verdict', 'settled');
    END IF;
    IF NOT asks THEN
        PERFORM state.answer_held(w, 'unknown-' || call, h.active_channel_id, 'system', state.unsent_result('failed', 'outcome_unknown',
            'the tool died after it had begun this call: nobody knows whether it was done, and it was not repeated'));
        UPDATE state.turn_waiting_tools x SET begun_by = NULL, doubted_at = NULL WHERE x.tool_call_id = call AND x.project_id = project;
        RETURN jsonb_build_object('verdict', 'answered');
    END IF;
    -- Who may decide is as with the question before, if there was one: a repeat is no way around a second pair of eyes.
    SELECT q.* INTO known FROM state.interrupts q WHERE q.agent_turn_id = w.agent_turn_id AND q.tool_call_id = call AND q.call_key IS NULL
    ORDER BY q.created_at LIMIT 1;
    interrupt := 'int-' || call || '-' || (
        SELECT count(*) + 1 FROM state.interrupts q WHERE q.agent_turn_id = w.agent_turn_id AND q.tool_call_id = call);
    INSERT INTO state.interrupts (interrupt_id, project_id, channel_id, agent_id, agent_turn_id, step_id, tool_call_id, tool_name, reason,
                                  message, action_digest, allowed_decisions, requester, requester_may_decide, wait_seconds, expires_at)
    SELECT interrupt, project, coalesce(h.active_channel_id, 'public'), w.agent_id, w.agent_turn_id, w.step_id, call, w.tool_name, 'confirmation',
           question, digest, ARRAY['approve', 'reject', 'respond'], coalesce((
               SELECT r.context_headers ->> 'CG-Sender' FROM state.turn_nodes n JOIN state.agent_inbox r ON r.agent_turn_id = n.root_turn_id
               WHERE n.agent_turn_id = w.agent_turn_id AND r.message_type IN ('turn', 'ui_action') LIMIT 1), (
               SELECT i.context_headers ->> 'CG-Sender' FROM state.agent_inbox i WHERE i.inbox_id = h.active_inbox_id)),
           coalesce(known.requester_may_decide, true),
           coalesce(known.wait_seconds, extract(epoch FROM coalesce(w.deadline, h.resume_deadline) - w.created_at)::float8, 120), until;
    UPDATE state.turn_waiting_tools x SET held_by = interrupt, deadline = NULL, begun_by = NULL, doubted_at = NULL, updated_at = now()
    WHERE x.tool_call_id = call AND x.project_id = project;
    UPDATE state.agent_state_head x SET updated_at = clock_timestamp(), resume_deadline = (
        SELECT min(coalesce(o.deadline, h.resume_deadline)) FROM state.turn_waiting_tools o
        WHERE o.agent_turn_id = w.agent_turn_id AND o.project_id = project AND o.wait_status = 'waiting' AND o.held_by IS NULL)
    WHERE x.agent_id = w.agent_id AND x.project_id = project;
    RETURN jsonb_build_object('verdict', 'asked', 'interrupt_id', interrupt, 'expires_at', until);
END $$;
