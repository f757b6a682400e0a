-- People in the loop (protocol §13): questions to people that turns wait for, and what decides them.
--
-- Lock order, which extends that of 0024: heads -> waiting rows -> interrupts -> own inbox rows -> [the outcome] -> ... -> nodes -> new rows.
-- Whoever changes an interrupt holds its agent's head, so a decision, a stop, an expiry and an end come one after another.

-- A question about a call, which its waiting row names in held_by as long as nobody has decided. Opened by the commit that suspends the
-- turn; withdrawn by the turn's end. What people may see of the arguments is on the call's card.
CREATE TABLE state.interrupts (
    interrupt_id         text PRIMARY KEY,
    project_id           text NOT NULL,
    channel_id           text NOT NULL,
    agent_id             text NOT NULL,
    agent_turn_id        text NOT NULL,
    step_id              text NOT NULL,
    tool_call_id         text NOT NULL,
    tool_name            text NOT NULL,
    reason               text NOT NULL CHECK (reason IN ('tool_call', 'input_required', 'confirmation')),
    message              text NOT NULL,
    action_digest        text,
    allowed_decisions    text[] NOT NULL CHECK (allowed_decisions <@ ARRAY['approve', 'edit', 'reject', 'respond']),
    response_schema      jsonb,
    on_expiry            text NOT NULL DEFAULT 'reject' CHECK (on_expiry = 'reject'),
    requester            text,
    requester_may_decide boolean NOT NULL DEFAULT false,
    tool_pin             jsonb,
    wait_seconds         float8 NOT NULL,
    status               text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'resolved', 'expired', 'withdrawn')),
    decision             text CHECK (decision IN ('approve', 'edit', 'reject', 'respond')),
    decision_digest      text,
    decided_by           text,
    comment              text,
    tool_changed         boolean NOT NULL DEFAULT false,
    edited_digest        text,
    created_at           timestamptz NOT NULL DEFAULT now(),
    decided_at           timestamptz,
    expires_at           timestamptz NOT NULL,
    CHECK ((status = 'open') = (decided_at IS NULL) AND (status = 'resolved') = (decision IS NOT NULL))
) WITH (fillfactor = 70);
-- The collation keeps these from statements that know the key.
CREATE INDEX interrupts_project ON state.interrupts (project_id COLLATE "C", created_at, interrupt_id);
CREATE INDEX interrupts_open ON state.interrupts (project_id COLLATE "C", created_at, interrupt_id) WHERE status = 'open';
CREATE INDEX interrupts_due ON state.interrupts (expires_at) WHERE status = 'open';
CREATE INDEX interrupts_turn ON state.interrupts (agent_turn_id);
COMMENT ON COLUMN state.interrupts.requester IS 'the principal that asked for the turn, or for the root of its tree';
COMMENT ON COLUMN state.interrupts.tool_pin IS 'target_subject and parameters of the tool''s row as they were asked about; null for tools without a row';
COMMENT ON COLUMN state.interrupts.wait_seconds IS 'how long the call may take, from the decision on';
COMMENT ON COLUMN state.interrupts.decision_digest IS 'the hash of what was decided, with its arguments or response: a repeat is the same';
COMMENT ON COLUMN state.interrupts.edited_digest IS 'with edit: the digest of the action that was sent';

-- Answers a held call, whose waiting row is locked, instead of its tool: card, inbox row, waiting row and edge. `content` is that of the card.
CREATE FUNCTION state.answer_held(w state.turn_waiting_tools, inbox text, channel text, author text, content jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    i state.agent_inbox;
    trace text;
BEGIN
    SELECT x.* INTO i FROM state.agent_inbox x
    WHERE x.agent_turn_id = w.agent_turn_id AND x.message_type IN ('turn', 'ui_action') LIMIT 1;
    trace := split_part(i.context_headers ->> 'traceparent', '-', 2);
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    VALUES (w.tool_call_id || '-result', w.project_id, content, w.tool_call_id,
            jsonb_build_object('type', 'tool.result', 'role', 'tool', 'author_id', author, 'function_name', w.tool_name,
                'step_id', w.step_id, 'agent_turn_id', w.agent_turn_id, 'trace_id', trace))
    ON CONFLICT DO NOTHING;
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                                   turn_epoch, context_headers, payload, status, next_retry_at, created_at)
    VALUES (inbox, w.project_id, w.agent_id, coalesce(channel, 'public'), 'tool_result', 'report', w.tool_call_id,
            w.agent_turn_id, w.turn_epoch, i.context_headers,
            jsonb_build_object('status', content ->> 'status', 'after_execution',
                CASE jsonb_typeof(content -> 'error') WHEN 'object' THEN content -> 'after_execution' END, 'tool_result_card_id', w.tool_call_id || '-result'),
            'pending', now(), clock_timestamp())
    ON CONFLICT DO NOTHING;
    UPDATE state.turn_waiting_tools x SET wait_status = 'received', received_at = now(), updated_at = now()
    WHERE x.tool_call_id = w.tool_call_id AND x.project_id = w.project_id;
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    VALUES ('report-' || w.tool_call_id, w.project_id, channel, 'report', 'response', w.agent_id, w.agent_turn_id,
            w.tool_call_id, coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0), trace, w.step_id,
            jsonb_build_object('status', content ->> 'status'))
    ON CONFLICT DO NOTHING;
END $$;

-- As before, by the function above.
CREATE OR REPLACE FUNCTION state.tell_parent(b state.pmo_batches, verdict text, late text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    w state.turn_waiting_tools;
    i state.agent_inbox;
    told jsonb;
    trace text;
    depth integer;
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = b.parent_tool_call_id AND x.project_id = b.project_id FOR NO KEY UPDATE;
    IF w.wait_status IS DISTINCT FROM 'waiting' THEN
        RETURN false;  -- the parent was over first, or its tool has answered
    END IF;
    SELECT CASE b.answer WHEN 'join' THEN jsonb_build_object('status', verdict, 'results', jsonb_agg(r.told ORDER BY r.task_index))
                         ELSE jsonb_agg(r.told - 'task_index' - 'label' - 'summary' || jsonb_build_object('value', r.value)) -> 0 END INTO told
    FROM (
        SELECT t.task_index, CASE WHEN c.card_id IS NULL THEN 'null' ELSE state.value_of_card(c.content) END AS value, jsonb_build_object(
                   'task_index', t.task_index, 'label', t.label, 'status', CASE t.status WHEN 'dispatched' THEN late ELSE t.status END,
                   'summary', left(state.value_of_card(c.content) #>> '{}', 500), 'output_box_id', t.output_box_id,
                   'error', CASE t.status WHEN 'dispatched' THEN CASE late WHEN 'timeout' THEN 'deadline' WHEN 'canceled' THEN 'batch_decided' END
                                          ELSE t.error_code END,
                   'agent_id', nullif(t.agent_id, ''), 'agent_turn_id', t.current_agent_turn_id,
                   'deliverable_card_id', t.deliverable_card_id) AS told
        FROM state.pmo_batch_tasks t LEFT JOIN LATERAL (
            SELECT x.card_id, x.content FROM public.cards x WHERE x.card_id = t.deliverable_card_id AND x.tenant_id = b.project_id OFFSET 0) c ON true
        WHERE t.batch_id = b.batch_id) r;
    SELECT x.* INTO i FROM state.agent_inbox x
    WHERE x.agent_turn_id = b.parent_agent_turn_id AND x.message_type IN ('turn', 'ui_action') LIMIT 1;
    trace := split_part(i.context_headers ->> 'traceparent', '-', 2);
    depth := coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0);
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    VALUES ('join-' || b.batch_id || '-response', b.project_id, b.parent_channel_id, 'join', 'response', w.agent_id, w.agent_turn_id,
            b.batch_id, depth, trace, w.step_id, jsonb_build_object('status', verdict))
    ON CONFLICT DO NOTHING;
    IF b.call_key IS NOT NULL THEN
        UPDATE state.pmo_batches x SET result = told WHERE x.batch_id = b.batch_id;
        RETURN true;
    END IF;
    PERFORM state.answer_held(w, 'join-' || b.batch_id, b.parent_channel_id, 'sys.pmo', jsonb_build_object(
        '__type__', 'ToolResultContent', 'status', verdict, 'after_execution', state.after_execution_of(b.project_id, w.tool_name),
        'error', NULL, 'result', told));
    RETURN true;
END $$;

-- As before, and nobody is asked any more for a turn that is over.
CREATE OR REPLACE FUNCTION state.settle_end() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task record;
    b state.pmo_batches;
    verdict text;
    losers text[] := '{}';
BEGIN
    UPDATE state.interrupts x SET status = 'withdrawn', decided_at = clock_timestamp()
    WHERE x.agent_turn_id = NEW.agent_turn_id AND x.status = 'open';
    IF NOT EXISTS (SELECT FROM state.turn_nodes n WHERE n.agent_turn_id = NEW.agent_turn_id) THEN
        RETURN NULL;  -- in no tree. A node cannot be in flight: who makes the first one of a turn holds the agent's head
    END IF;
    SELECT t.batch_task_id, t.batch_id INTO task FROM state.pmo_batch_tasks t WHERE t.current_agent_turn_id = NEW.agent_turn_id;
    IF FOUND THEN
        -- The row is the mutex, and its counts are exact: an update reads the newest version of the row that it waited for.
        UPDATE state.pmo_batches x SET open_count = x.open_count - 1, updated_at = now(),
               success_count = x.success_count + (NEW.status = 'success')::int,
               failed_count = x.failed_count + (NEW.status NOT IN ('success', 'partial'))::int
        WHERE x.batch_id = task.batch_id RETURNING x.* INTO b;
        UPDATE state.pmo_batch_tasks t SET status = NEW.status, output_box_id = NEW.output_box_id, error_code = NEW.error_code,
               deliverable_card_id = NEW.deliverable_card_id, updated_at = now()
        WHERE t.batch_task_id = task.batch_task_id;
        IF b.status = 'running' THEN
            verdict := state.verdict_of(b);
            IF verdict IS NOT NULL THEN
                losers := state.decide(b.batch_id, verdict, NEW.agent_turn_id, CASE b.losers WHEN 'stop' THEN 'canceled' ELSE 'running' END);
            END IF;
        END IF;
    END IF;
    -- Nodes come last, in one pass: the losers, its own, and what waits below them.
    PERFORM state.mark_subtrees(losers || NEW.agent_turn_id, CASE WHEN losers = '{}' THEN 'parent_ended' ELSE 'batch_decided' END,
                                NEW.agent_turn_id, false, NEW.agent_turn_id);
    RETURN NULL;
END $$;

-- The content of the result of a call that was not sent. It never ends the turn: the model may do something else.
CREATE FUNCTION state.unsent_result(status text, code text, message text) RETURNS jsonb LANGUAGE sql IMMUTABLE
RETURN jsonb_build_object('__type__', 'ToolResultContent', 'status', status, 'after_execution', 'suspend', 'result', NULL,
                          'error', jsonb_build_object('code', code, 'message', message));

-- Decides a question, once. `who` is the principal; asked: digest (the hash of the whole decision), message, and response (the value) or
-- card (an edited call card: card_id, content, metadata) with action_digest (of the edited action). A call that is approved or edited is no
-- longer held, and its time begins; its command is published after the commit. One that is rejected or responded to has its result.
-- verdict: accepted | duplicate (the same decision, by the same principal) | already_decided | expired | withdrawn | unknown_interrupt |
-- own_request | decision_not_allowed | digest_mismatch. It runs with the caller's rights: a worker has none to decide.
CREATE FUNCTION state.decide_interrupt(project text, channel text, interrupt text, who text, wanted text, digest text, asked jsonb)
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
       OR w.wait_status IS DISTINCT FROM 'waiting' OR w.held_by IS DISTINCT FROM interrupt
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

-- Closes a question that nobody answered in time; false if it is closed, or its time has not come. The call is rejected; a question without
-- a tool times out.
CREATE FUNCTION state.expire_interrupt(interrupt text) RETURNS boolean LANGUAGE plpgsql AS $$
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
    IF w.wait_status = 'waiting' AND w.held_by = interrupt THEN
        PERFORM state.answer_held(w, 'decide-' || interrupt, t.channel_id, 'system', CASE t.reason
            WHEN 'input_required' THEN state.unsent_result('timeout', 'no_answer', 'nobody answered in time')
            ELSE state.unsent_result('failed', 'approval_expired', 'nobody approved this call in time: it was not sent') END);
        UPDATE state.turn_waiting_tools x SET held_by = NULL WHERE x.tool_call_id = w.tool_call_id AND x.project_id = w.project_id;
    END IF;
    UPDATE state.interrupts x SET status = 'expired', decided_by = 'system', decided_at = clock_timestamp()
    WHERE x.interrupt_id = interrupt;
    RETURN true;
END $$;
