-- Trees of turns (protocol §6, join): batches, marks, and what decides and closes them. The tables are those of v1r4 and of 0018; all new
-- columns have defaults. Nothing here runs before 0025 hangs it on the outcomes.
--
-- Lock order of all functions below, which extends that of the transitions:
--   boxes -> instances -> heads (sorted, the parent's among them) -> own waiting rows -> own inbox rows -> [the outcome is written]
--   -> the batch one is a task of -> its tasks -> the parent's waiting row -> nodes (by depth, then id) -> new rows.
-- Who holds a batch or a node asks for no head and for no existing inbox row.
--
-- What bridges and workers call, and the trigger, run with the owner's rights: only they write batches, tasks and nodes.

ALTER TABLE state.pmo_batches
    ADD COLUMN join_mode text NOT NULL DEFAULT 'all' CHECK (join_mode IN ('all', 'any', 'first_k', 'quorum')),
    ADD COLUMN k integer NOT NULL DEFAULT 1 CHECK (k >= 1),
    ADD COLUMN fail_fast boolean NOT NULL DEFAULT false,
    ADD COLUMN losers text NOT NULL DEFAULT 'stop' CHECK (losers IN ('stop', 'finish')),
    ADD COLUMN answer text NOT NULL DEFAULT 'join' CHECK (answer IN ('join', 'child')),
    ADD COLUMN partial_at_deadline boolean NOT NULL DEFAULT false,
    ADD COLUMN open_count integer NOT NULL DEFAULT 0 CHECK (open_count >= 0),
    ADD COLUMN success_count integer NOT NULL DEFAULT 0,
    ADD COLUMN failed_count integer NOT NULL DEFAULT 0,
    ADD COLUMN decided_at timestamptz,
    ADD COLUMN decided_by text,
    ADD COLUMN call_key text,
    ADD COLUMN call_digest text,
    ADD COLUMN result jsonb;
ALTER TABLE state.pmo_batches SET (fillfactor = 50);
COMMENT ON COLUMN state.pmo_batches.open_count IS 'tasks that are not over; with the other two counts it decides, under the lock of the row';
COMMENT ON COLUMN state.pmo_batches.decided_by IS 'the turn whose end decided it, or the batch itself: by it the bridge finds whom to ring';
COMMENT ON COLUMN state.pmo_batches.call_key IS 'the name that a tool gave it; null if it is the call''s own, which it holds and answers';
COMMENT ON COLUMN state.pmo_batches.call_digest IS 'with call_key: the hash of what was asked, so that a key means one thing';
COMMENT ON COLUMN state.pmo_batches.result IS 'with call_key: what it was decided as, for the tool; null while it runs and if it was withdrawn';
CREATE INDEX batches_running ON state.pmo_batches (deadline_at) WHERE status = 'running';
CREATE INDEX batches_parent ON state.pmo_batches (parent_agent_turn_id);
CREATE INDEX batches_decided_by ON state.pmo_batches (decided_by) WHERE decided_by IS NOT NULL;

ALTER TABLE state.pmo_batch_tasks
    ADD COLUMN task_index integer,
    ADD COLUMN label text,
    ADD COLUMN deliverable_card_id text,
    ADD COLUMN error_code text;
ALTER TABLE state.pmo_batch_tasks SET (fillfactor = 70);
CREATE UNIQUE INDEX batch_tasks_turn ON state.pmo_batch_tasks (current_agent_turn_id) WHERE current_agent_turn_id IS NOT NULL;

-- What a deliverable's card says, as one JSON value; of a turn that made none itself, its last text or why it ended.
CREATE FUNCTION state.value_of_card(content jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN octet_length(v::text) > 500000 THEN to_jsonb(left(v #>> '{}', 100000)) ELSE v END
    FROM (SELECT CASE
        WHEN content ->> '__type__' = 'TextContent' THEN content -> 'text'
        WHEN content ->> '__type__' = 'JsonContent' AND content -> 'data' ? 'terminal_status'
        THEN to_jsonb(coalesce(content -> 'data' ->> 'last_thought', content -> 'data' ->> 'reason'))
        WHEN content ->> '__type__' = 'JsonContent' THEN content -> 'data'
        ELSE content END AS v) x
$$;

-- Whether a turn is a loser that its decided batch lets finish: nobody waits for it any more. One look by key; the turns of a batch that
-- is decided while this is read may be marked or not, as if the mark had come before.
CREATE FUNCTION state.is_let_finish(turn text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM state.pmo_batch_tasks t JOIN state.pmo_batches b ON b.batch_id = t.batch_id
                   WHERE t.current_agent_turn_id = turn AND b.losers = 'finish' AND b.status NOT IN ('running', 'withdrawn'))
$$;

-- Marks these turns, all of one depth, and what their trees wait for, level by level; returns whom it marked. With `whole`, turns that
-- nobody waits for too, also below turns that are over. Each level is locked in the order of ids and read with a snapshot of its own:
-- whoever enqueues holds its parent's node FOR SHARE until it commits, so once a level is locked the next statement sees each child
-- of it, and none can come. `ender` is the turn that ends in this transaction: its node is closed in the same pass.
CREATE FUNCTION state.mark_subtrees(tops text[], why text, by_whom text, whole boolean, ender text) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    level text[] := tops;
    fresh text[];
    marked text[] := '{}';
BEGIN
    WHILE cardinality(level) > 0 LOOP
        WITH held AS MATERIALIZED (
            SELECT n.agent_turn_id, n.stopping_at, n.ended, n.agent_turn_id IS NOT DISTINCT FROM ender AS ends,
                   n.stopping_at IS NULL AND n.agent_turn_id IS DISTINCT FROM ender AS is_told
            FROM state.turn_nodes n WHERE n.agent_turn_id = ANY (level)
            ORDER BY n.agent_turn_id FOR NO KEY UPDATE
        ),
        done AS (
            UPDATE state.turn_nodes n SET stopping_at = coalesce(held.stopping_at, clock_timestamp()),
                   stop_reason = CASE WHEN held.is_told THEN why ELSE n.stop_reason END,
                   stopped_by = CASE WHEN held.is_told THEN by_whom ELSE n.stopped_by END, ended = n.ended OR held.ends
            FROM held WHERE n.agent_turn_id = held.agent_turn_id AND (held.ends OR (held.stopping_at IS NULL AND NOT held.ended))
            RETURNING n.agent_turn_id, held.stopping_at AS earlier
        )
        SELECT coalesce(array_agg(agent_turn_id) FILTER (WHERE earlier IS NULL), '{}') INTO fresh FROM done;
        marked := marked || fresh;
        -- of a turn that another cascade has marked, that one took all below it along; only `whole` must look there again
        level := ARRAY(SELECT c.agent_turn_id FROM state.turn_nodes c
                       WHERE c.parent_turn_id = ANY (CASE WHEN whole THEN level ELSE fresh END)
                         AND (whole OR (c.waited AND NOT c.ended AND NOT state.is_let_finish(c.agent_turn_id))));
    END LOOP;
    marked := array_remove(marked, ender);
    IF cardinality(marked) > 0 THEN
        -- The durable rings for what is in hand, without a lock on any head: whom it misses has a closed gate, and the safety net ends
        -- what is marked and not over. Their correlation is not the turn's, as a stop's is: a child that ends has updated that row and
        -- waits for the batch that we hold, and an insert of the same key would wait for it.
        INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                                       turn_epoch, context_headers, payload, status, next_retry_at, created_at)
        SELECT 'cascade-' || i.agent_turn_id, i.project_id, i.agent_id, i.channel_id, 'stop', 'report', 'cascade-' || i.agent_turn_id,
               i.agent_turn_id, h.turn_epoch, i.context_headers, jsonb_build_object('reason', why), 'pending', now(), clock_timestamp()
        FROM unnest(marked) m (id) CROSS JOIN LATERAL (
            SELECT x.* FROM state.agent_inbox x WHERE x.agent_turn_id = m.id AND x.message_type IN ('turn', 'ui_action') LIMIT 1 OFFSET 0) i
        CROSS JOIN LATERAL (
            SELECT x.turn_epoch FROM state.agent_state_head x
            WHERE x.agent_id = i.agent_id AND x.project_id = i.project_id AND x.active_agent_turn_id = m.id OFFSET 0) h
        WHERE m.id IS DISTINCT FROM by_whom  -- a turn that was asked to stop by name has its own row
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN marked;
END $$;

-- What a batch comes to by its counts; null while it is open. A task that is `partial` neither succeeds nor fails.
CREATE FUNCTION state.verdict_of(b state.pmo_batches) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN b.fail_fast AND b.failed_count > 0 THEN 'failed'
        WHEN b.join_mode <> 'all' AND b.success_count >= b.k THEN 'success'
        WHEN b.join_mode <> 'all' AND b.success_count + b.open_count < b.k
        THEN CASE WHEN b.failed_count + b.open_count < b.task_count THEN 'partial' ELSE 'failed' END
        WHEN b.join_mode = 'all' AND b.open_count = 0
        THEN CASE b.task_count WHEN b.success_count THEN 'success' WHEN b.failed_count THEN 'failed' ELSE 'partial' END
    END
$$;

-- Answers the parent's call with what the batch came to: card, inbox row, waiting row, edges. False if the call waits no more. The batch
-- is locked; what it lists is read with a snapshot newer than the lock. A batch with a key is one of a tool's (protocol §12.10): its call is
-- not answered, and what it came to is kept in its row for the tool, which hears the same whenever it asks.
CREATE FUNCTION state.tell_parent(b state.pmo_batches, verdict text, late text) RETURNS boolean LANGUAGE plpgsql AS $$
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
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    VALUES (w.tool_call_id || '-result', b.project_id, jsonb_build_object(
                '__type__', 'ToolResultContent', 'status', verdict, 'after_execution', state.after_execution_of(b.project_id, w.tool_name),
                'error', NULL, 'result', told),
            w.tool_call_id, jsonb_build_object('type', 'tool.result', 'role', 'tool', 'author_id', 'sys.pmo', 'function_name', w.tool_name,
                'step_id', w.step_id, 'agent_turn_id', w.agent_turn_id, 'trace_id', trace))
    ON CONFLICT DO NOTHING;
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                                   turn_epoch, context_headers, payload, status, next_retry_at, created_at)
    VALUES ('join-' || b.batch_id, b.project_id, w.agent_id, coalesce(b.parent_channel_id, 'public'), 'tool_result', 'report', w.tool_call_id,
            w.agent_turn_id, w.turn_epoch, i.context_headers,
            jsonb_build_object('status', verdict, 'after_execution', NULL, 'tool_result_card_id', w.tool_call_id || '-result'),
            'pending', now(), clock_timestamp())
    ON CONFLICT DO NOTHING;
    UPDATE state.turn_waiting_tools x SET wait_status = 'received', received_at = now(), updated_at = now()
    WHERE x.tool_call_id = w.tool_call_id AND x.project_id = w.project_id;
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    VALUES ('report-' || w.tool_call_id, b.project_id, b.parent_channel_id, 'report', 'response', w.agent_id, w.agent_turn_id,
            w.tool_call_id, depth, trace, w.step_id, jsonb_build_object('status', verdict))
    ON CONFLICT DO NOTHING;
    RETURN true;
END $$;

-- Writes the decision of a batch that is locked and whose counts are right; returns the losers to mark. `late` is what becomes of the
-- tasks that are not over; those that were never enqueued are over now.
CREATE FUNCTION state.decide(batch text, verdict text, by_whom text, late text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    b state.pmo_batches;
    dropped integer;
BEGIN
    UPDATE state.pmo_batch_tasks t SET status = CASE late WHEN 'timeout' THEN 'timeout' ELSE 'canceled' END, updated_at = now(),
           error_code = CASE late WHEN 'timeout' THEN 'deadline' ELSE 'batch_decided' END
    WHERE t.batch_id = batch AND t.status = 'pending';
    GET DIAGNOSTICS dropped = ROW_COUNT;
    SELECT x.* INTO b FROM state.pmo_batches x WHERE x.batch_id = batch;
    IF NOT state.tell_parent(b, verdict, late) THEN
        verdict := 'withdrawn';
    END IF;
    UPDATE state.pmo_batches x SET status = verdict, open_count = x.open_count - dropped, failed_count = x.failed_count + dropped,
           decided_at = clock_timestamp(), decided_by = by_whom, updated_at = now()
    WHERE x.batch_id = batch;
    IF late = 'running' THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(SELECT t.current_agent_turn_id FROM state.pmo_batch_tasks t WHERE t.batch_id = batch AND t.status = 'dispatched');
END $$;

-- What every end of a turn owes to its tree, in the transaction that writes the outcome, whichever statement that is: the task is settled,
-- the batch decided if that was the one, and the node closed with all that waits below it.
CREATE FUNCTION state.settle_end() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task record;
    b state.pmo_batches;
    verdict text;
    losers text[] := '{}';
BEGIN
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

-- Decides a batch whose deadline has passed, or whose call waits no more; null if it is neither, or being decided. One batch a
-- transaction: of two, where the parent of one is a task of the other, the second would deadlock with that parent's end.
CREATE FUNCTION state.expire_batch(batch text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    b state.pmo_batches;
    verdict text;
BEGIN
    SELECT x.* INTO b FROM state.pmo_batches x WHERE x.batch_id = batch AND x.status = 'running' FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND OR (b.deadline_at > now() AND EXISTS (
            SELECT FROM state.turn_waiting_tools w
            WHERE w.tool_call_id = b.parent_tool_call_id AND w.project_id = b.project_id AND w.wait_status = 'waiting')) THEN
        RETURN NULL;
    END IF;
    verdict := CASE WHEN b.partial_at_deadline AND b.failed_count + b.open_count < b.task_count THEN 'partial' ELSE 'timeout' END;
    PERFORM state.mark_subtrees(
        state.decide(batch, verdict, batch, CASE b.losers WHEN 'stop' THEN 'timeout' ELSE 'running' END), 'batch_deadline', batch, false, NULL);
    RETURN (SELECT x.status FROM state.pmo_batches x WHERE x.batch_id = batch);
END $$;

-- Whether a turn is marked now, whatever the caller's snapshot says. The gates of turns that have no node ask it: once more, where the
-- head that they wait for has changed.
CREATE FUNCTION state.is_marked(turn text) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM state.turn_nodes n WHERE n.agent_turn_id = turn AND n.stopping_at IS NOT NULL);
END $$;

-- Marks a turn that is not over and what its tree waits for, or all below it. A turn in no tree gets a node, so that its own gates are
-- closed, too, and that a first fork finds the mark: who makes a turn's first node holds its agent's head. Returns null for a turn
-- that is over or unknown; else whom it marked.
CREATE FUNCTION state.mark_tree(project text, turn text, why text, whole boolean) RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    agent text;
BEGIN
    SELECT i.agent_id INTO agent FROM state.agent_inbox i
    WHERE i.agent_turn_id = turn AND i.project_id = project AND i.message_type IN ('turn', 'ui_action');
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM FROM state.agent_state_head h WHERE h.agent_id = agent AND h.project_id = project FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = turn) THEN
        IF NOT whole THEN
            RETURN NULL;
        END IF;
    ELSE
        INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id) VALUES (turn, project, turn) ON CONFLICT DO NOTHING;
        IF FOUND THEN  -- a gate that waits for our lock, and saw no node, looks again at a head that has changed
            UPDATE state.agent_state_head h SET updated_at = now()
            WHERE h.agent_id = agent AND h.project_id = project AND h.active_agent_turn_id = turn;
        END IF;
    END IF;
    RETURN state.mark_subtrees(ARRAY[turn], why, turn, whole, NULL);
END $$;

-- Makes the batch of a call, with its tasks, which are not enqueued yet; those that were refused are over. The call is held by it from
-- then on, unless plan.call_key names it as one of its tool's: then the call goes on, and its deadline stays. plan: the columns of the batch; tasks: task_index, agent_id, profile_box_id, label, error_code, error of each.
-- verdict: accepted | duplicate | the code of a refusal.
CREATE FUNCTION state.open_batch(project text, call text, plan jsonb, tasks jsonb) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w state.turn_waiting_tools;
    h state.agent_state_head;
    b state.pmo_batches;
    key text := plan ->> 'call_key';
    batch text := 'batch-' || call || coalesce('/' || key, '');
    stopping timestamptz;
    verdict text;
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    IF NOT FOUND THEN
        RETURN 'unknown_call';
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x WHERE x.agent_id = w.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM state.pmo_batches x WHERE x.batch_id = batch AND x.project_id = project) THEN
        RETURN 'duplicate';
    END IF;
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    IF w.wait_status <> 'waiting' OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id OR h.turn_epoch <> w.turn_epoch
       OR h.status <> 'suspended' OR EXISTS (  -- it is timed out: whoever applies that would leave the batch without its call
           SELECT FROM state.agent_inbox i WHERE i.correlation_id = call AND i.project_id = project AND i.message_type = 'timeout') THEN
        RETURN 'parent_over';
    END IF;
    IF w.held_by IS NOT NULL THEN
        RETURN 'not_sent';
    END IF;
    INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id) VALUES (w.agent_turn_id, project, w.agent_turn_id)
    ON CONFLICT DO NOTHING;
    SELECT n.stopping_at INTO stopping FROM state.turn_nodes n WHERE n.agent_turn_id = w.agent_turn_id FOR SHARE;
    IF stopping IS NOT NULL THEN
        RETURN 'parent_stopping';
    END IF;
    INSERT INTO state.pmo_batches (batch_id, project_id, parent_agent_id, parent_agent_turn_id, parent_tool_call_id, parent_turn_epoch,
                                   parent_channel_id, task_count, deadline_at, join_mode, k, fail_fast, losers, answer, partial_at_deadline,
                                   open_count, failed_count, call_key, call_digest)
    SELECT batch, project, w.agent_id, w.agent_turn_id, call, w.turn_epoch, h.active_channel_id, t.total,
           now() + make_interval(secs => p.deadline_seconds), p.join_mode, p.k, p.fail_fast, p.losers, p.answer, p.partial_at_deadline,
           t.total - t.refused, t.refused, key, plan ->> 'call_digest'
    FROM jsonb_to_record(plan) p (deadline_seconds float8, join_mode text, k int, fail_fast boolean, losers text, answer text,
                                  partial_at_deadline boolean)
    CROSS JOIN (SELECT count(*) AS total, count(*) FILTER (WHERE x ->> 'error_code' IS NOT NULL) AS refused FROM jsonb_array_elements(tasks) x) t
    RETURNING * INTO b;
    INSERT INTO state.pmo_batch_tasks (batch_task_id, batch_id, project_id, agent_id, status, profile_box_id, task_index, label, error_code,
                                       error_detail)
    SELECT batch || '-' || t.task_index, batch, project, t.agent_id, CASE WHEN t.error_code IS NULL THEN 'pending' ELSE 'failed' END,
           t.profile_box_id, t.task_index, t.label, t.error_code, t.error
    FROM jsonb_to_recordset(tasks) t (task_index int, agent_id text, profile_box_id uuid, label text, error_code text, error text);
    IF key IS NULL THEN
        UPDATE state.turn_waiting_tools x SET held_by = batch, updated_at = now() WHERE x.tool_call_id = call AND x.project_id = project;
        UPDATE state.agent_state_head x SET resume_deadline = (  -- the batch has a deadline of its own
            SELECT min(coalesce(o.deadline, h.resume_deadline)) FROM state.turn_waiting_tools o
            WHERE o.agent_turn_id = w.agent_turn_id AND o.project_id = project AND o.turn_epoch = w.turn_epoch AND o.wait_status = 'waiting'
              AND o.held_by IS NULL)
        WHERE x.agent_id = w.agent_id AND x.project_id = project;
    END IF;
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id, source_agent_turn_id,
                                       source_step_id, target_agent_id, target_agent_turn_id, correlation_id, recursion_depth, trace_id,
                                       parent_step_id, metadata)
    VALUES ('join-' || batch || '-request', project, h.active_channel_id, 'join', 'request', w.agent_id, w.agent_turn_id, w.step_id,
            w.agent_id, w.agent_turn_id, batch, h.active_recursion_depth, h.trace_id, w.step_id,
            jsonb_build_object('tool_call_id', call, 'tasks', b.task_count))
    ON CONFLICT DO NOTHING;
    verdict := state.verdict_of(b);
    IF verdict IS NOT NULL THEN
        PERFORM state.decide(batch, verdict, batch, 'canceled');
    END IF;
    RETURN 'accepted';
END $$;

-- Enqueues children of a call: with a batch its tasks that are pending, without one turns that nobody waits for. Each child gets a roster
-- row and a head if it is a new agent, an inbox row, boxes, cards, edge and node; an idle agent is leased. What one child cannot have
-- fails its task at once, and may decide the batch. Answers a row '' with the verdict on the whole (accepted, or the code of a
-- refusal, with which nothing is written) and a row for each child that was enqueued or refused; none for those that were before.
CREATE FUNCTION state.enqueue_children(project text, call text, batch text, children jsonb, max_queued_turns integer, max_live_turns integer)
RETURNS TABLE (task_index integer, verdict text, agent_id text, agent_turn_id text, inbox_id text, turn_epoch bigint, leased_at timestamptz,
               worker_target text, channel_id text, context_headers jsonb, context_box_id uuid, output_box_id uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    w state.turn_waiting_tools;
    h state.agent_state_head;
    b state.pmo_batches;
    root text;
    stopping timestamptz;
    channel text;
    decided text;
    losers text[] := '{}';
    crowded boolean;
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    IF NOT FOUND THEN
        RETURN QUERY SELECT NULL::int, 'unknown_call', NULL, NULL, NULL, NULL::bigint, NULL::timestamptz, NULL, NULL, NULL::jsonb, NULL::uuid, NULL::uuid;
        RETURN;
    END IF;
    -- boxes, instances, heads: each in one sorted pass
    PERFORM FROM (
        SELECT x.box_id FROM public.boxes x
        WHERE x.tenant_id = project AND x.box_id IN (
            SELECT i::uuid FROM jsonb_array_elements(children) c CROSS JOIN jsonb_array_elements_text(c -> 'inherits') i
            UNION SELECT (c ->> 'output_box_id')::uuid FROM jsonb_array_elements(children) c)
        ORDER BY x.box_id FOR KEY SHARE) held;
    PERFORM FROM (
        SELECT a.agent_id FROM resource.project_agents a
        WHERE a.project_id = project AND a.agent_id IN (SELECT c ->> 'agent_id' FROM jsonb_array_elements(children) c) AND a.metadata ? 'instance_of'
        ORDER BY a.agent_id FOR NO KEY UPDATE) held;
    PERFORM FROM (
        SELECT x.agent_id FROM state.agent_state_head x
        WHERE x.project_id = project AND x.agent_id = ANY (ARRAY(SELECT c ->> 'agent_id' FROM jsonb_array_elements(children) c) || w.agent_id)
        ORDER BY x.agent_id FOR NO KEY UPDATE) held;
    SELECT x.* INTO h FROM state.agent_state_head x WHERE x.agent_id = w.agent_id AND x.project_id = project;
    IF batch IS NULL THEN
        SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    ELSE
        SELECT x.* INTO b FROM state.pmo_batches x WHERE x.batch_id = batch AND x.project_id = project FOR NO KEY UPDATE;
        SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    END IF;
    SELECT n.root_turn_id, n.stopping_at INTO root, stopping FROM state.turn_nodes n WHERE n.agent_turn_id = w.agent_turn_id FOR SHARE;
    decided := CASE
        WHEN batch IS NOT NULL AND (b.batch_id IS NULL OR b.parent_tool_call_id <> call) THEN 'not_your_batch'
        WHEN batch IS NOT NULL AND b.status <> 'running' THEN 'accepted'
        WHEN w.wait_status <> 'waiting' OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id OR h.turn_epoch <> w.turn_epoch THEN 'parent_over'
        WHEN stopping IS NOT NULL THEN 'parent_stopping'
        WHEN batch IS NULL AND w.held_by IS NOT NULL THEN 'not_sent' END;
    RETURN QUERY SELECT NULL::int, coalesce(decided, 'accepted'), NULL, NULL, NULL, NULL::bigint, NULL::timestamptz, NULL, NULL, NULL::jsonb, NULL::uuid, NULL::uuid;
    IF decided IS NOT NULL THEN
        RETURN;
    END IF;
    IF root IS NULL THEN  -- a delegation without a batch is the turn's first child: the head is locked
        INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id) VALUES (w.agent_turn_id, project, w.agent_turn_id);
        root := w.agent_turn_id;
    END IF;
    channel := coalesce(h.active_channel_id, 'public');
    crowded := max_live_turns > 0 AND max_live_turns <= (
        SELECT count(*) FROM (SELECT FROM state.agent_inbox l WHERE l.project_id COLLATE "C" = project AND l.archived_at IS NULL AND l.inbox_id >= ''
                                AND l.message_type IN ('turn', 'ui_action') LIMIT max_live_turns) l) + (
        SELECT count(*) FROM (SELECT FROM state.agent_state_head x WHERE x.project_id COLLATE "C" = project AND x.agent_id >= ''
                                AND x.output_box_id IS NOT NULL AND x.status <> 'dispatched' LIMIT max_live_turns) x);
    RETURN QUERY
    WITH task AS MATERIALIZED (  -- OFFSET 0: by key, whatever a plan that was made while tables were small would do
        SELECT c.*, coalesce(substr(batch, 7), call) || '-' || c.task_index AS correlation, a.status AS agent_status, a.status = 'dormant' AS wakes,
               coalesce(a.worker_target, c.new_agent ->> 'worker_target') AS target, a.agent_id IS NULL AS makes_agent,
               x.agent_id IS NULL AS makes_head, coalesce(x.turn_epoch, 0) AS epoch, coalesce(x.status, 'idle') = 'idle' AND x.paused IS NOT TRUE AS idle,
               q.queued, coalesce(c.output_box_id, c.new_output_box_id) AS outp,
               row_number() OVER (PARTITION BY c.agent_id ORDER BY c.task_index) AS turn_of_agent,
               row_number() OVER (PARTITION BY coalesce(c.output_box_id, c.new_output_box_id) ORDER BY c.task_index) AS turn_of_box,
               c.context_headers || jsonb_build_object('CG-Recursion-Depth', (h.active_recursion_depth + 1)::text,
                   'CG-Parent-Agent-Id', w.agent_id, 'CG-Parent-Turn-Id', w.agent_turn_id, 'CG-Parent-Step-Id', w.step_id) AS headers
        FROM jsonb_to_recordset(children) c (task_index int, agent_id text, profile_box_id uuid, agent_turn_id text, inbox_id text,
                 new_context_box_id uuid, new_output_box_id uuid, output_box_id uuid, inherits uuid[], cards jsonb, new_agent jsonb,
                 context_headers jsonb, runtime_config jsonb)
        LEFT JOIN LATERAL (SELECT x.* FROM resource.project_agents x WHERE x.agent_id = c.agent_id AND x.project_id = project OFFSET 0) a ON true
        LEFT JOIN LATERAL (
            SELECT x.agent_id, x.status, x.turn_epoch, x.paused_at_epoch IS NOT NULL AS paused FROM state.agent_state_head x
            WHERE x.agent_id = c.agent_id AND x.project_id = project OFFSET 0) x ON true
        CROSS JOIN LATERAL (SELECT count(*) AS queued FROM state.queued_turns q WHERE q.agent_id = c.agent_id AND q.project_id = project OFFSET 0) q
        WHERE batch IS NULL OR EXISTS (SELECT FROM state.pmo_batch_tasks t WHERE t.batch_task_id = batch || '-' || c.task_index
                                         AND t.status = 'pending' OFFSET 0)
    ),
    judged AS MATERIALIZED (
        SELECT t.*, t.idle AND t.queued = 0 AND t.turn_of_agent = 1 AND t.turn_of_box = 1 AND NOT EXISTS (
                   SELECT FROM state.agent_state_head busy WHERE busy.output_box_id = t.outp AND busy.agent_id <> t.agent_id OFFSET 0) AS leases,
               CASE WHEN EXISTS (SELECT FROM state.agent_inbox i WHERE i.correlation_id = t.correlation AND i.project_id = project
                                   AND i.message_type = 'turn' OFFSET 0) THEN 'correlation_conflict'
                    WHEN t.makes_agent AND t.new_agent IS NULL THEN 'unknown_agent'
                    WHEN NOT t.makes_agent AND t.agent_status NOT IN ('active', 'paused', 'dormant') THEN 'agent_inactive'
                    WHEN t.output_box_id IS NOT NULL AND NOT EXISTS (
                        SELECT FROM public.boxes x WHERE x.box_id = t.output_box_id AND x.tenant_id = project OFFSET 0) THEN 'unknown_output_box'
                    WHEN EXISTS (SELECT FROM unnest(t.inherits) i (box_id) WHERE NOT EXISTS (
                        SELECT FROM public.boxes x WHERE x.box_id = i.box_id AND x.tenant_id = project OFFSET 0)) THEN 'unknown_context_box'
                    WHEN crowded THEN 'project_full'
                    WHEN max_queued_turns > 0 AND t.queued + t.turn_of_agent - 1 >= max_queued_turns AND NOT (t.idle AND t.queued = 0) THEN 'queue_full'
                    ELSE 'accepted' END AS verdict
        FROM task t
    ),
    go AS MATERIALIZED (SELECT j.* FROM judged j WHERE j.verdict = 'accepted'),
    made_agents AS (
        INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id, worker_target, tags, display_name, owner_agent_id, metadata)
        SELECT project, g.agent_id, g.profile_box_id, g.target, coalesce(g.new_agent -> 'tags', '[]'), g.new_agent ->> 'display_name',
               g.new_agent ->> 'owner_agent_id', coalesce(g.new_agent -> 'metadata', '{}')
        FROM go g WHERE g.makes_agent AND g.turn_of_agent = 1 ORDER BY g.agent_id
    ),
    identities AS (
        INSERT INTO state.identity_edges (edge_id, project_id, channel_id, action, source_agent_id, target_agent_id, trace_id, parent_step_id)
        SELECT 'child-' || g.agent_turn_id, project, channel, 'create', w.agent_id, g.agent_id, h.trace_id, w.step_id
        FROM go g WHERE g.makes_agent AND g.turn_of_agent = 1
    ),
    woken AS (
        UPDATE resource.project_agents a SET status = 'active'
        FROM (SELECT DISTINCT g.agent_id FROM go g WHERE g.wakes) g WHERE a.agent_id = g.agent_id AND a.project_id = project
    ),
    mine AS (
        INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                                       turn_epoch, context_headers, payload, status, next_retry_at, created_at)
        SELECT g.inbox_id, project, g.agent_id, channel, 'turn', 'call', g.correlation, g.agent_turn_id,
               CASE WHEN g.leases THEN g.epoch + 1 ELSE 0 END, g.headers,
               jsonb_build_object('profile_box_id', g.profile_box_id, 'context_box_id', g.new_context_box_id, 'output_box_id', g.outp,
                                  'runtime_config', coalesce(g.runtime_config, '{}')),
               CASE WHEN g.leases THEN 'pending' ELSE 'queued' END, CASE WHEN g.leases THEN now() ELSE 'infinity' END, clock_timestamp()
        FROM go g ORDER BY g.task_index
    ),
    heads AS (  -- an upsert finds its rows by key in every plan; once an agent
        INSERT INTO state.agent_state_head AS x (project_id, agent_id, status, turn_epoch, queue_seq, active_agent_turn_id, active_inbox_id,
            active_channel_id, active_recursion_depth, parent_step_id, trace_id, profile_box_id, context_box_id, output_box_id)
        SELECT DISTINCT ON (g.agent_id) project, g.agent_id, CASE WHEN g.leases THEN 'dispatched' ELSE 'idle' END,
               g.epoch + CASE WHEN g.leases THEN 1 ELSE 0 END, 1, CASE WHEN g.leases THEN g.agent_turn_id END,
               CASE WHEN g.leases THEN g.inbox_id END, CASE WHEN g.leases THEN channel END, h.active_recursion_depth + 1, w.step_id,
               split_part(g.headers ->> 'traceparent', '-', 2), CASE WHEN g.leases THEN g.profile_box_id END,
               CASE WHEN g.leases THEN g.new_context_box_id END, CASE WHEN g.leases THEN g.outp END
        FROM go g ORDER BY g.agent_id, g.leases DESC
        ON CONFLICT (agent_id, project_id) DO UPDATE SET queue_seq = x.queue_seq + 1,  -- every enqueue changes the head
            status = CASE WHEN EXCLUDED.status = 'dispatched' THEN 'dispatched' ELSE x.status END,
            turn_epoch = CASE WHEN EXCLUDED.status = 'dispatched' THEN EXCLUDED.turn_epoch ELSE x.turn_epoch END,
            updated_at = CASE WHEN EXCLUDED.status = 'dispatched' THEN now() ELSE x.updated_at END,
            active_agent_turn_id = coalesce(EXCLUDED.active_agent_turn_id, x.active_agent_turn_id),
            active_inbox_id = coalesce(EXCLUDED.active_inbox_id, x.active_inbox_id),
            active_channel_id = coalesce(EXCLUDED.active_channel_id, x.active_channel_id),
            active_recursion_depth = CASE WHEN EXCLUDED.status = 'dispatched' THEN EXCLUDED.active_recursion_depth ELSE x.active_recursion_depth END,
            parent_step_id = CASE WHEN EXCLUDED.status = 'dispatched' THEN EXCLUDED.parent_step_id ELSE x.parent_step_id END,
            trace_id = CASE WHEN EXCLUDED.status = 'dispatched' THEN EXCLUDED.trace_id ELSE x.trace_id END,
            profile_box_id = coalesce(EXCLUDED.profile_box_id, x.profile_box_id),
            context_box_id = coalesce(EXCLUDED.context_box_id, x.context_box_id), output_box_id = coalesce(EXCLUDED.output_box_id, x.output_box_id),
            waiting_tool_count = CASE WHEN EXCLUDED.status = 'dispatched' THEN 0 ELSE x.waiting_tool_count END,
            resume_deadline = CASE WHEN EXCLUDED.status = 'dispatched' THEN NULL ELSE x.resume_deadline END,
            expecting_correlation_id = CASE WHEN EXCLUDED.status = 'dispatched' THEN NULL ELSE x.expecting_correlation_id END,
            restart_count = CASE WHEN EXCLUDED.status = 'dispatched' THEN 0 ELSE x.restart_count END,
            output_position = CASE WHEN EXCLUDED.status = 'dispatched' THEN 0 ELSE x.output_position END,
            step_count = CASE WHEN EXCLUDED.status = 'dispatched' THEN 0 ELSE x.step_count END,
            step_attempt = CASE WHEN EXCLUDED.status = 'dispatched' THEN 0 ELSE x.step_attempt END,
            model_failures = CASE WHEN EXCLUDED.status = 'dispatched' THEN 0 ELSE x.model_failures END,
            started_at = CASE WHEN EXCLUDED.status = 'dispatched' THEN NULL ELSE x.started_at END
    ),
    made_boxes AS (
        INSERT INTO public.boxes (box_id, tenant_id, parent_ids)
        SELECT x.box_id, project, x.parents FROM go g CROSS JOIN LATERAL (VALUES
            (g.new_context_box_id, g.inherits, true), (g.outp, '{}'::uuid[], g.output_box_id IS NULL)) x (box_id, parents, wanted)
        WHERE x.wanted
    ),
    made_cards AS (
        INSERT INTO public.cards (card_id, tenant_id, content, metadata)
        SELECT c ->> 'card_id', project, c -> 'content', c -> 'metadata' || jsonb_build_object(
                   'trace_id', split_part(g.headers ->> 'traceparent', '-', 2), 'parent_step_id', w.step_id)
        FROM go g CROSS JOIN jsonb_array_elements(g.cards) c
    ),
    boxed AS (  -- what it inherits, in order and each card once, from where a box that was cut is read; then its own
        INSERT INTO public.box_cards (box_id, position, card_id)
        SELECT g.new_context_box_id, row_number() OVER (PARTITION BY g.agent_turn_id ORDER BY x.place, x.position), x.card_id
        FROM go g CROSS JOIN LATERAL (
            SELECT DISTINCT ON (y.card_id) y.place, y.position, y.card_id FROM (
                SELECT i.place, p.position, p.card_id FROM unnest(g.inherits) WITH ORDINALITY i (box_id, place)
                LEFT JOIN state.memory_cuts m ON m.box_id = i.box_id
                JOIN public.box_cards p ON p.box_id = i.box_id AND p.position >= coalesce(m.position, 0)
                JOIN public.cards k ON k.card_id = p.card_id
                WHERE state.is_alive(k.expires_at, k.deleted_at)
                UNION ALL
                SELECT 1000000, o.position, o.c ->> 'card_id' FROM jsonb_array_elements(g.cards) WITH ORDINALITY o (c, position)) y
            ORDER BY y.card_id, y.place, y.position) x
    ),
    edges AS (
        INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id, source_agent_turn_id,
                                           source_step_id, target_agent_id, target_agent_turn_id, correlation_id, enqueue_mode,
                                           recursion_depth, trace_id, parent_step_id, metadata)
        SELECT 'enqueue-' || g.agent_turn_id, project, channel, 'enqueue', 'request', w.agent_id, w.agent_turn_id, w.step_id, g.agent_id,
               g.agent_turn_id, g.correlation, 'call', h.active_recursion_depth + 1, split_part(g.headers ->> 'traceparent', '-', 2), w.step_id,
               jsonb_build_object('tool_call_id', call)
        FROM go g
        ON CONFLICT DO NOTHING
    ),
    nodes AS (
        INSERT INTO state.turn_nodes (agent_turn_id, project_id, parent_turn_id, root_turn_id, waited)
        SELECT g.agent_turn_id, project, w.agent_turn_id, root, batch IS NOT NULL FROM go g ORDER BY g.agent_turn_id
    ),
    tasks AS (
        UPDATE state.pmo_batch_tasks t SET status = CASE j.verdict WHEN 'accepted' THEN 'dispatched' ELSE 'failed' END,
               attempt_count = t.attempt_count + 1, updated_at = now(), agent_id = j.agent_id, profile_box_id = j.profile_box_id,
               current_agent_turn_id = CASE j.verdict WHEN 'accepted' THEN j.agent_turn_id END,
               current_turn_epoch = CASE WHEN j.verdict = 'accepted' AND j.leases THEN j.epoch + 1 END,
               context_box_id = CASE j.verdict WHEN 'accepted' THEN j.new_context_box_id END,
               output_box_id = CASE j.verdict WHEN 'accepted' THEN j.outp END,
               error_code = CASE WHEN j.verdict <> 'accepted' THEN j.verdict END
        FROM judged j WHERE t.batch_task_id = batch || '-' || j.task_index
    ),
    counted AS (
        UPDATE state.pmo_batches x SET open_count = x.open_count - n.refused, failed_count = x.failed_count + n.refused, updated_at = now()
        FROM (SELECT count(*) FILTER (WHERE j.verdict <> 'accepted') AS refused FROM judged j) n WHERE x.batch_id = batch
    )
    SELECT j.task_index, j.verdict, j.agent_id, j.agent_turn_id, j.inbox_id, CASE WHEN j.leases THEN j.epoch + 1 ELSE 0 END,
           CASE WHEN j.verdict = 'accepted' AND j.leases THEN now() END, j.target, channel, j.headers, j.new_context_box_id, j.outp
    FROM judged j ORDER BY j.task_index;
    IF batch IS NOT NULL THEN
        SELECT x.* INTO b FROM state.pmo_batches x WHERE x.batch_id = batch;
        decided := state.verdict_of(b);
        IF decided IS NOT NULL AND b.status = 'running' THEN
            losers := state.decide(batch, decided, batch, CASE b.losers WHEN 'stop' THEN 'canceled' ELSE 'running' END);
            PERFORM state.mark_subtrees(losers, 'batch_decided', batch, false, NULL);
        END IF;
    END IF;
END $$;
