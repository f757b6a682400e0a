-- Enqueues children of a call: with a batch its tasks that are pending, without one turns that nobody waits for. Each
-- child gets a roster row if it is a new agent, a node, and what write_turns writes; an idle agent is leased. A child
-- inherits what is in a box. It has the budget that its task asks for, or what its parent has; one that does not fit
-- fails its task alone, as `budget_exceeded`, and refusal says what there was. What one child cannot have fails its
-- task at once, and may decide the batch. Returns a row without task_index with the verdict on the whole (accepted, or
-- the code of a refusal, with which nothing is written) and a row for each child that was enqueued or refused; none for
-- those that were before. peer_card: the card of a call that has no waiting row (peer_call). OFFSET 0: see
-- prunable_threads.
CREATE OR REPLACE FUNCTION state.enqueue_children(project text, call text, batch text, children jsonb,
    max_queued_turns integer, max_live_turns integer, peer_card text)
RETURNS TABLE (task_index integer, verdict text, agent_id text, agent_turn_id text, inbox_id text, turn_epoch bigint,
               leased_at timestamptz, worker_target text, channel_id text, context_headers jsonb, context_box_id uuid,
               output_box_id uuid, refusal jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    w state.turn_waiting_tools;
    h state.agent_state_head;
    b state.pmo_batches;
    peer record;
    root text;
    stopping timestamptz;
    channel text;
    held uuid[];
    decided text;
    losers text[] := '{}';
    crowded boolean;
    purse jsonb;
    person text;
    limited boolean;
    child record;
    turns state.new_turn[] := '{}';
    refused integer := 0;
    epoch bigint;
    made text[] := '{}';
    leased text[] := '{}';
    written uuid[] := '{}';
    plans jsonb := '[]';
BEGIN
    IF peer_card IS NULL THEN
        SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    ELSE
        SELECT x.* INTO peer FROM state.peer_call(project, peer_card) x;
        w := peer.w;
    END IF;
    IF w.tool_call_id IS DISTINCT FROM call THEN
        verdict := 'unknown_call';
        RETURN NEXT;
        RETURN;
    END IF;
    -- boxes, instances, heads: each in one sorted pass
    held := ARRAY(SELECT x.box_id FROM state.hold_boxes(project, ARRAY(
            SELECT i::uuid FROM jsonb_array_elements(children) c
            CROSS JOIN jsonb_array_elements_text(c -> 'inherits') i),
        ARRAY(SELECT (c ->> 'output_box_id')::uuid FROM jsonb_array_elements(children) c)) x);
    PERFORM FROM (
        SELECT a.agent_id FROM resource.project_agents a
        WHERE a.project_id = project AND a.agent_id IN (SELECT c ->> 'agent_id' FROM jsonb_array_elements(children) c)
          AND a.metadata ? 'instance_of'
        ORDER BY a.agent_id FOR NO KEY UPDATE) held;
    PERFORM FROM (
        SELECT x.agent_id FROM state.agent_state_head x
        WHERE x.project_id = project AND x.agent_id = ANY (ARRAY(SELECT c ->> 'agent_id'
            FROM jsonb_array_elements(children) c) || w.agent_id)
        ORDER BY x.agent_id FOR NO KEY UPDATE) held;
    SELECT x.* INTO h FROM state.agent_state_head x WHERE x.agent_id = w.agent_id AND x.project_id = project;
    IF batch IS NOT NULL THEN
        SELECT x.* INTO b FROM state.pmo_batches x
        WHERE x.batch_id = batch AND x.project_id = project FOR NO KEY UPDATE;
    END IF;
    IF peer_card IS NOT NULL THEN
        SELECT x.* INTO peer FROM state.peer_call(project, peer_card) x;
        w := peer.w;
        h := peer.h;
        root := w.agent_turn_id;
    ELSIF batch IS NULL THEN
        SELECT x.* INTO w FROM state.turn_waiting_tools x
        WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    ELSE
        SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    END IF;
    IF root IS NULL THEN
        SELECT n.root_turn_id, n.stopping_at INTO root, stopping FROM state.turn_nodes n
        WHERE n.agent_turn_id = w.agent_turn_id FOR SHARE;
    END IF;
    decided := CASE
        WHEN batch IS NOT NULL AND (b.batch_id IS NULL OR b.parent_tool_call_id <> call) THEN 'not_your_batch'
        WHEN batch IS NOT NULL AND b.status <> 'running' THEN 'accepted'
        WHEN w.wait_status <> 'waiting' OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id
            OR h.turn_epoch <> w.turn_epoch THEN 'parent_over'
        WHEN stopping IS NOT NULL THEN 'parent_stopping'
        WHEN batch IS NULL AND w.held_by IS NOT NULL THEN 'not_sent' END;
    verdict := coalesce(decided, 'accepted');
    RETURN NEXT;
    IF decided IS NOT NULL THEN
        RETURN;
    END IF;
    IF root IS NULL THEN  -- a delegation without a batch is the turn's first child: the head is locked
        INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id)
        VALUES (w.agent_turn_id, project, w.agent_turn_id);
        root := w.agent_turn_id;
    END IF;
    channel := coalesce(h.active_channel_id, 'public');
    crowded := state.is_crowded(project, max_live_turns);
    SELECT i.payload -> 'budget', i.payload ->> 'end_user' INTO purse, person FROM state.agent_inbox i
    WHERE i.agent_turn_id = w.agent_turn_id AND i.message_type IN ('turn', 'ui_action') LIMIT 1;
    limited := purse IS NOT NULL OR EXISTS (SELECT FROM jsonb_array_elements(children) c
        WHERE jsonb_typeof(c -> 'budget') = 'object')
        OR EXISTS (SELECT FROM state.project_budgets p WHERE p.project_id = project);
    FOR child IN
    WITH task AS MATERIALIZED (
        SELECT c.*, coalesce(substr(batch, 7), call) || '-' || c.task_index AS correlation, a.status AS agent_status,
               a.status = 'dormant' AS wakes, coalesce(a.worker_target, c.new_agent ->> 'worker_target') AS target,
               a.agent_id IS NULL AS makes_agent,
               coalesce(greatest(  -- a lease of this era has an epoch above its floor
                   x.turn_epoch, (SELECT e.epoch_floor FROM state.ledger_era e WHERE e.is_only)), 0) AS epoch,
               coalesce(x.status, 'idle') = 'idle' AND x.paused IS NOT TRUE AS idle, q.queued,
               coalesce(c.output_box_id, c.new_output_box_id) AS outp,
               greatest(c.needs_level, state.as_count(p.settings ->> 'needs_level')) AS level,
               row_number() OVER (PARTITION BY c.agent_id ORDER BY c.task_index) AS turn_of_agent,
               c.context_headers || jsonb_build_object(
                   'CG-Recursion-Depth', (h.active_recursion_depth + 1)::text, 'CG-Parent-Agent-Id', w.agent_id,
                   'CG-Parent-Turn-Id', w.agent_turn_id, 'CG-Parent-Step-Id', w.step_id) AS headers
        FROM jsonb_to_recordset(children) c (
            task_index int, agent_id text, profile_box_id uuid, agent_turn_id text, inbox_id text,
            new_context_box_id uuid, new_output_box_id uuid, output_box_id uuid, inherits uuid[], cards jsonb,
            new_agent jsonb, context_headers jsonb, runtime_config jsonb, budget jsonb, needs_level int)
        LEFT JOIN LATERAL (
            SELECT x.* FROM resource.project_agents x
            WHERE x.agent_id = c.agent_id AND x.project_id = project OFFSET 0) a ON true
        LEFT JOIN LATERAL (
            SELECT x.agent_id, x.status, x.turn_epoch, x.paused_at_epoch IS NOT NULL AS paused
            FROM state.agent_state_head x
            WHERE x.agent_id = c.agent_id AND x.project_id = project OFFSET 0) x ON true
        LEFT JOIN LATERAL (
            SELECT x.settings FROM resource.profiles x
            WHERE x.profile_box_id = c.profile_box_id::text AND x.project_id = project
              AND x.settings ->> 'profile_box_id' = x.profile_box_id OFFSET 0) p ON true
        CROSS JOIN LATERAL (
            SELECT count(*) AS queued FROM state.queued_turns q
            WHERE q.agent_id = c.agent_id AND q.project_id = project OFFSET 0) q
        WHERE batch IS NULL OR EXISTS (
            SELECT FROM state.pmo_batch_tasks t
            WHERE t.batch_task_id = batch || '-' || c.task_index AND t.status = 'pending' OFFSET 0)
    ),
    fit AS MATERIALIZED (  -- for all but what they may spend
        SELECT t.*, t.idle AND t.queued = 0 AND NOT EXISTS (
                   SELECT FROM state.agent_state_head busy
                   WHERE busy.output_box_id = t.outp AND busy.agent_id <> t.agent_id OFFSET 0) AS leases,
               CASE WHEN EXISTS (SELECT FROM state.agent_inbox i
                   WHERE i.correlation_id = t.correlation AND i.project_id = project
                                   AND i.message_type = 'turn' OFFSET 0) THEN 'correlation_conflict'
                    WHEN t.makes_agent AND t.new_agent IS NULL THEN 'unknown_agent'
                    WHEN NOT t.makes_agent AND t.agent_status NOT IN ('active', 'paused', 'dormant')
                        THEN 'agent_inactive'
                    WHEN t.output_box_id IS NOT NULL AND (t.output_box_id <> ALL (held)
                        OR state.is_written_abroad(project, channel, t.output_box_id)
                        OR state.is_read_abroad(project, channel, t.output_box_id)) THEN 'unknown_output_box'
                    WHEN EXISTS (SELECT FROM unnest(t.inherits) i (box_id)  -- the caller has judged their cards
                        WHERE i.box_id <> ALL (held) OR state.is_written_abroad(project, channel, i.box_id))
                    THEN 'unknown_context_box'
                    WHEN t.level IS NOT NULL AND state.is_behind(t.level) THEN 'upgrade_under_way'
                    WHEN crowded THEN 'project_full'
                    WHEN max_queued_turns > 0 AND t.queued + t.turn_of_agent - 1 >= max_queued_turns
                        AND NOT (t.idle AND t.queued = 0) THEN 'queue_full'
                    ELSE 'accepted' END AS fitness
        FROM task t
    ),
    planned AS MATERIALIZED (  -- 0 is nothing
        SELECT f.task_index, f.agent_turn_id, state.plan_budget(project, f.agent_turn_id, f.budget, purse) AS plan, (
                   SELECT jsonb_build_object('dimension', substr(z.key, 5), 'had', 0, 'spent', 0, 'reserved', 0,
                       'asked', 0, 'left', 0)
                   FROM jsonb_each(f.budget) z WHERE z.value = '0' LIMIT 1) AS refusal
        FROM fit f WHERE limited AND f.fitness = 'accepted'
    ),
    wanting AS MATERIALIZED (  -- each task leaves those after it less
        SELECT r.agent_turn_id, r.refusal FROM (
            SELECT jsonb_agg(jsonb_build_object('agent_turn_id', p.agent_turn_id, 'budget', p.plan)
                ORDER BY p.task_index) AS plans
            FROM planned p WHERE p.plan IS NOT NULL AND p.refusal IS NULL) p
        CROSS JOIN LATERAL state.judge_children(p.plans) r WHERE p.plans IS NOT NULL
    )
    SELECT f.*, p.plan, short.refusal, CASE WHEN short.refusal IS NULL THEN f.fitness
               ELSE 'budget_exceeded' END AS verdict
    FROM fit f LEFT JOIN planned p ON p.task_index = f.task_index
    LEFT JOIN wanting r ON r.agent_turn_id = f.agent_turn_id
    CROSS JOIN LATERAL (SELECT coalesce(p.refusal, r.refusal) AS refusal) short
    ORDER BY f.task_index
    LOOP
        child.leases := child.leases AND child.verdict = 'accepted' AND child.agent_id <> ALL (leased)
            AND child.outp <> ALL (written);
        epoch := 0;
        IF child.leases THEN
            epoch := child.epoch + 1;
            leased := leased || child.agent_id;
            written := written || child.outp;
        END IF;
        IF child.verdict <> 'accepted' THEN
            refused := refused + 1;
        ELSE
            turns := turns || (
                child.agent_id, channel, child.agent_turn_id, child.inbox_id, 'turn', child.correlation, NULL, epoch,
                false, child.headers, jsonb_build_object('runtime_config', coalesce(child.runtime_config, '{}'))
                    || CASE WHEN person IS NULL THEN '{}' ELSE jsonb_build_object('end_user', person) END
                    || CASE WHEN child.plan IS NULL THEN '{}'
                            ELSE jsonb_build_object('budget', child.plan || '{"granted": true}') END,
                jsonb_build_object('tool_call_id', call), child.profile_box_id, child.new_context_box_id, child.outp,
                true, child.output_box_id IS NULL, child.inherits, child.cards, clock_timestamp())::state.new_turn;
            IF child.plan IS NOT NULL THEN
                plans := plans || jsonb_build_object('agent_turn_id', child.agent_turn_id, 'budget', child.plan);
            END IF;
            IF child.makes_agent AND child.agent_id <> ALL (made) THEN
                made := made || child.agent_id;
                INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id, worker_target, tags,
                                                     display_name, owner_agent_id, metadata)
                VALUES (project, child.agent_id, child.profile_box_id, child.target,
                        coalesce(child.new_agent -> 'tags', '[]'), child.new_agent ->> 'display_name',
                        child.new_agent ->> 'owner_agent_id', coalesce(child.new_agent -> 'metadata', '{}'));
                INSERT INTO state.identity_edges (edge_id, project_id, channel_id, action, source_agent_id,
                                                  target_agent_id, trace_id, parent_step_id)
                VALUES ('child-' || child.agent_turn_id, project, channel, 'create', w.agent_id, child.agent_id,
                        h.trace_id, w.step_id);
            ELSIF child.wakes THEN
                UPDATE resource.project_agents a SET status = 'active'
                WHERE a.agent_id = child.agent_id AND a.project_id = project;
            END IF;
        END IF;
        UPDATE state.pmo_batch_tasks t SET status = CASE child.verdict WHEN 'accepted' THEN 'dispatched'
                ELSE 'failed' END, attempt_count = t.attempt_count + 1, updated_at = now(), agent_id = child.agent_id,
            profile_box_id = child.profile_box_id,
            current_agent_turn_id = CASE child.verdict WHEN 'accepted' THEN child.agent_turn_id END,
            current_turn_epoch = nullif(epoch, 0),
            context_box_id = CASE child.verdict WHEN 'accepted' THEN child.new_context_box_id END,
            output_box_id = CASE child.verdict WHEN 'accepted' THEN child.outp END,
            error_code = nullif(child.verdict, 'accepted'),
            error_detail = CASE WHEN child.refusal IS NULL THEN t.error_detail
                ELSE state.told_of_refusal(child.refusal)::text END
        WHERE t.batch_task_id = batch || '-' || child.task_index;
        RETURN QUERY SELECT child.task_index, child.verdict, child.agent_id, child.agent_turn_id, child.inbox_id, epoch,
            CASE WHEN child.leases THEN now() END, child.target, channel, child.headers, child.new_context_box_id,
            child.outp, child.refusal;
    END LOOP;
    PERFORM state.write_turns(project, turns);
    INSERT INTO state.turn_nodes (agent_turn_id, project_id, parent_turn_id, root_turn_id, waited)
    SELECT t.agent_turn_id, project, w.agent_turn_id, root, batch IS NOT NULL FROM unnest(turns) t
    ORDER BY t.agent_turn_id;
    IF batch IS NOT NULL THEN
        UPDATE state.pmo_batches x SET open_count = x.open_count - refused, failed_count = x.failed_count + refused,
            updated_at = now()
        WHERE x.batch_id = batch RETURNING x.* INTO b;
        decided := state.verdict_of(b);
        IF decided IS NOT NULL AND b.status = 'running' THEN
            losers := state.decide(batch, decided, batch, CASE b.losers WHEN 'stop' THEN 'canceled' ELSE 'running' END);
            PERFORM state.mark_subtrees(losers, 'batch_decided', batch, false, NULL);
        END IF;
    END IF;
    PERFORM state.grant_children(project, channel, plans);  -- last: it locks budgets
END $$;
