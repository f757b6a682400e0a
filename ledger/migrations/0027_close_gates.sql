-- Two gates of trees that stood open for a moment (protocol §6, join). A step of a turn in no tree that waited for the mark of that turn
-- began: its statement had looked for a node before there was one. And a call whose timeout was written, but not applied, was forked.

-- Whether a turn is marked now, whatever the caller's snapshot says. The gates of turns that have no node ask it: once more, where the
-- head that they wait for has changed.
CREATE FUNCTION state.is_marked(turn text) RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM state.turn_nodes n WHERE n.agent_turn_id = turn AND n.stopping_at IS NOT NULL);
END $$;

-- Marks a turn that is not over and what its tree waits for, or all below it. A turn in no tree gets a node, so that its own gates are
-- closed, too, and that a first fork finds the mark: who makes a turn's first node holds its agent's head. Returns null for a turn
-- that is over or unknown; else whom it marked.
CREATE OR REPLACE FUNCTION state.mark_tree(project text, turn text, why text, whole boolean) RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- As in 0026, and a call that is being timed out gets no batch.
CREATE OR REPLACE FUNCTION state.open_batch(project text, call text, plan jsonb, tasks jsonb) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- Agents that a call made for its child are instances of the child's profile, and go with their only turn; but [limits].max_instances
-- counts only those that requests have made.
CREATE INDEX project_agents_asked ON resource.project_agents (project_id COLLATE "C", status)
    WHERE metadata ? 'instance_of' AND NOT metadata ? 'spawned_by';

-- As before, and a turn stays as long as a child of it is not over, and as long as its parent waits for its batch.
CREATE OR REPLACE FUNCTION state.prunable_turns(before timestamptz) RETURNS TABLE (agent_turn_id text, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT o.agent_turn_id, o.project_id FROM state.turn_outcomes o
    WHERE o.ended_at < before AND o.announced_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = o.agent_turn_id AND i.archived_at IS NULL OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.pmo_batches b WHERE b.parent_agent_turn_id = o.agent_turn_id
                        AND (b.status = 'running' OR b.open_count > 0) OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.pmo_batch_tasks t JOIN state.pmo_batches b ON b.batch_id = t.batch_id
                      WHERE t.current_agent_turn_id = o.agent_turn_id AND b.status = 'running' OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.thread_messages m WHERE m.agent_turn_id = o.agent_turn_id
            AND NOT EXISTS (SELECT FROM state.prunable_threads(before) t WHERE t.thread_id = m.thread_id OFFSET 0) OFFSET 0)
      AND (NOT EXISTS (
          SELECT FROM state.agent_state_pointers p
          WHERE p.agent_id = o.agent_id AND p.project_id = o.project_id AND p.last_output_box_id = o.output_box_id
            AND o.turn_epoch > 0 AND NOT EXISTS (
                SELECT FROM state.agent_inbox l JOIN state.turn_outcomes e ON e.agent_turn_id = l.agent_turn_id
                WHERE lower(l.payload ->> 'output_box_id') = o.output_box_id::text AND l.message_type IN ('turn', 'ui_action')
                  AND l.agent_id = o.agent_id AND l.project_id = o.project_id AND l.turn_epoch > o.turn_epoch OFFSET 0) OFFSET 0)
        OR EXISTS (
          SELECT FROM resource.project_agents a JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = a.project_id
          WHERE a.agent_id = o.agent_id AND a.project_id = o.project_id AND a.metadata ->> 'agent_turn_id' = o.agent_turn_id
            AND h.queue_seq = 1 OFFSET 0))
$$;
