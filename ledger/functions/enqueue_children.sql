-- Enqueues children of a call: with a batch its tasks that are pending, without one turns that nobody waits for. Each
-- child gets a roster row and a head if it is a new agent, an inbox row, boxes, cards, edge and node; an idle agent is
-- leased. A child inherits what is in a box. It has the budget that its task asks for, or what its parent has; one that
-- does not fit fails its task alone, as `budget_exceeded`, and refusal says what there was. What one child cannot have
-- fails its task at once, and may decide the batch. Answers a row '' with the verdict on the whole (accepted, or the
-- code of a refusal, with which nothing is written) and a row for each child that was enqueued or refused; none for
-- those that were before. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.enqueue_children(project text, call text, batch text, children jsonb,
    max_queued_turns integer, max_live_turns integer)
RETURNS TABLE (task_index integer, verdict text, agent_id text, agent_turn_id text, inbox_id text, turn_epoch bigint,
               leased_at timestamptz, worker_target text, channel_id text, context_headers jsonb, context_box_id uuid,
               output_box_id uuid, refusal jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    w state.turn_waiting_tools;
    h state.agent_state_head;
    b state.pmo_batches;
    root text;
    stopping timestamptz;
    channel text;
    held uuid[];
    decided text;
    losers text[] := '{}';
    crowded boolean;
    purse jsonb;
    limited boolean;
    made record;
    plans jsonb := '[]';
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    IF NOT FOUND THEN
        RETURN QUERY SELECT NULL::int, 'unknown_call', NULL, NULL, NULL, NULL::bigint, NULL::timestamptz, NULL, NULL,
            NULL::jsonb, NULL::uuid, NULL::uuid, NULL::jsonb;
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
    IF batch IS NULL THEN
        SELECT x.* INTO w FROM state.turn_waiting_tools x
        WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    ELSE
        SELECT x.* INTO b FROM state.pmo_batches x
        WHERE x.batch_id = batch AND x.project_id = project FOR NO KEY UPDATE;
        SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    END IF;
    SELECT n.root_turn_id, n.stopping_at INTO root, stopping FROM state.turn_nodes n
    WHERE n.agent_turn_id = w.agent_turn_id FOR SHARE;
    decided := CASE
        WHEN batch IS NOT NULL AND (b.batch_id IS NULL OR b.parent_tool_call_id <> call) THEN 'not_your_batch'
        WHEN batch IS NOT NULL AND b.status <> 'running' THEN 'accepted'
        WHEN w.wait_status <> 'waiting' OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id
            OR h.turn_epoch <> w.turn_epoch THEN 'parent_over'
        WHEN stopping IS NOT NULL THEN 'parent_stopping'
        WHEN batch IS NULL AND w.held_by IS NOT NULL THEN 'not_sent' END;
    RETURN QUERY SELECT NULL::int, coalesce(decided, 'accepted'), NULL, NULL, NULL, NULL::bigint, NULL::timestamptz,
        NULL, NULL, NULL::jsonb, NULL::uuid, NULL::uuid, NULL::jsonb;
    IF decided IS NOT NULL THEN
        RETURN;
    END IF;
    IF root IS NULL THEN  -- a delegation without a batch is the turn's first child: the head is locked
        INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id)
        VALUES (w.agent_turn_id, project, w.agent_turn_id);
        root := w.agent_turn_id;
    END IF;
    channel := coalesce(h.active_channel_id, 'public');
    crowded := max_live_turns > 0 AND max_live_turns <= (
        SELECT count(*) FROM (
            SELECT FROM state.agent_inbox l
            WHERE l.project_id COLLATE "C" = project AND l.archived_at IS NULL AND l.inbox_id >= ''
              AND l.message_type IN ('turn', 'ui_action') LIMIT max_live_turns) l) + (
        SELECT count(*) FROM (
            SELECT FROM state.agent_state_head x
            WHERE x.project_id COLLATE "C" = project AND x.agent_id >= ''
              AND x.output_box_id IS NOT NULL AND x.status <> 'dispatched' LIMIT max_live_turns) x);
    SELECT i.payload -> 'budget' INTO purse FROM state.agent_inbox i
    WHERE i.agent_turn_id = w.agent_turn_id AND i.message_type IN ('turn', 'ui_action') LIMIT 1;
    limited := purse IS NOT NULL OR EXISTS (SELECT FROM jsonb_array_elements(children) c
        WHERE jsonb_typeof(c -> 'budget') = 'object')
        OR EXISTS (SELECT FROM state.project_budgets p WHERE p.project_id = project);
    FOR made IN
    WITH task AS MATERIALIZED (
        SELECT c.*, coalesce(substr(batch, 7), call) || '-' || c.task_index AS correlation, a.status AS agent_status,
               a.status = 'dormant' AS wakes, coalesce(a.worker_target, c.new_agent ->> 'worker_target') AS target,
               a.agent_id IS NULL AS makes_agent,
               coalesce(greatest(  -- a lease of this era has an epoch above its floor
                   x.turn_epoch, (SELECT e.epoch_floor FROM state.ledger_era e WHERE e.is_only)), 0) AS epoch,
               coalesce(x.status, 'idle') = 'idle' AND x.paused IS NOT TRUE AS idle, q.queued,
               coalesce(c.output_box_id, c.new_output_box_id) AS outp,
               row_number() OVER (PARTITION BY c.agent_id ORDER BY c.task_index) AS turn_of_agent,
               row_number() OVER (
                   PARTITION BY coalesce(c.output_box_id, c.new_output_box_id) ORDER BY c.task_index) AS turn_of_box,
               c.context_headers || jsonb_build_object(
                   'CG-Recursion-Depth', (h.active_recursion_depth + 1)::text, 'CG-Parent-Agent-Id', w.agent_id,
                   'CG-Parent-Turn-Id', w.agent_turn_id, 'CG-Parent-Step-Id', w.step_id) AS headers
        FROM jsonb_to_recordset(children) c (
            task_index int, agent_id text, profile_box_id uuid, agent_turn_id text, inbox_id text,
            new_context_box_id uuid, new_output_box_id uuid, output_box_id uuid, inherits uuid[], cards jsonb,
            new_agent jsonb, context_headers jsonb, runtime_config jsonb, budget jsonb)
        LEFT JOIN LATERAL (
            SELECT x.* FROM resource.project_agents x
            WHERE x.agent_id = c.agent_id AND x.project_id = project OFFSET 0) a ON true
        LEFT JOIN LATERAL (
            SELECT x.agent_id, x.status, x.turn_epoch, x.paused_at_epoch IS NOT NULL AS paused
            FROM state.agent_state_head x
            WHERE x.agent_id = c.agent_id AND x.project_id = project OFFSET 0) x ON true
        CROSS JOIN LATERAL (
            SELECT count(*) AS queued FROM state.queued_turns q
            WHERE q.agent_id = c.agent_id AND q.project_id = project OFFSET 0) q
        WHERE batch IS NULL OR EXISTS (
            SELECT FROM state.pmo_batch_tasks t
            WHERE t.batch_task_id = batch || '-' || c.task_index AND t.status = 'pending' OFFSET 0)
    ),
    fit AS MATERIALIZED (  -- for all but what they may spend
        SELECT t.*, t.idle AND t.queued = 0 AND t.turn_of_agent = 1 AND t.turn_of_box = 1 AND NOT EXISTS (
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
    ),
    judged AS MATERIALIZED (
        SELECT f.*, p.plan, short.refusal, CASE WHEN short.refusal IS NULL THEN f.fitness
            ELSE 'budget_exceeded' END AS verdict
        FROM fit f LEFT JOIN planned p ON p.task_index = f.task_index
        LEFT JOIN wanting r ON r.agent_turn_id = f.agent_turn_id
        CROSS JOIN LATERAL (SELECT coalesce(p.refusal, r.refusal) AS refusal) short
    ),
    go AS MATERIALIZED (SELECT j.* FROM judged j WHERE j.verdict = 'accepted'),
    made_agents AS (
        INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id, worker_target, tags, display_name,
            owner_agent_id, metadata)
        SELECT project, g.agent_id, g.profile_box_id, g.target, coalesce(g.new_agent -> 'tags', '[]'),
               g.new_agent ->> 'display_name', g.new_agent ->> 'owner_agent_id',
               coalesce(g.new_agent -> 'metadata', '{}')
        FROM go g WHERE g.makes_agent AND g.turn_of_agent = 1 ORDER BY g.agent_id
    ),
    identities AS (
        INSERT INTO state.identity_edges (edge_id, project_id, channel_id, action, source_agent_id, target_agent_id,
            trace_id, parent_step_id)
        SELECT 'child-' || g.agent_turn_id, project, channel, 'create', w.agent_id, g.agent_id, h.trace_id, w.step_id
        FROM go g WHERE g.makes_agent AND g.turn_of_agent = 1
    ),
    woken AS (
        UPDATE resource.project_agents a SET status = 'active'
        FROM (SELECT DISTINCT g.agent_id FROM go g WHERE g.wakes) g
        WHERE a.agent_id = g.agent_id AND a.project_id = project
    ),
    mine AS (
        INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode,
                                       correlation_id, agent_turn_id, turn_epoch, context_headers, payload, status,
                                       next_retry_at, created_at)
        SELECT g.inbox_id, project, g.agent_id, channel, 'turn', 'call', g.correlation, g.agent_turn_id,
               CASE WHEN g.leases THEN g.epoch + 1 ELSE 0 END, g.headers,
               jsonb_build_object('profile_box_id', g.profile_box_id, 'context_box_id', g.new_context_box_id,
                                  'output_box_id', g.outp, 'runtime_config', coalesce(g.runtime_config, '{}'))
               || CASE WHEN g.plan IS NULL THEN '{}' ELSE jsonb_build_object('budget', g.plan || '{"granted": true}')
                   END,
               CASE WHEN g.leases THEN 'pending' ELSE 'queued' END, CASE WHEN g.leases THEN now() ELSE 'infinity' END,
               clock_timestamp()
        FROM go g ORDER BY g.task_index
    ),
    heads AS (  -- an upsert finds its rows by key in every plan; once an agent
        INSERT INTO state.agent_state_head AS x (project_id, agent_id, status, turn_epoch, queue_seq,
            active_agent_turn_id, active_inbox_id, active_channel_id, active_recursion_depth, parent_step_id, trace_id,
            profile_box_id, context_box_id, output_box_id)
        SELECT DISTINCT ON (g.agent_id) project, g.agent_id, CASE WHEN g.leases THEN 'dispatched' ELSE 'idle' END,
               g.epoch + CASE WHEN g.leases THEN 1 ELSE 0 END, 1, CASE WHEN g.leases THEN g.agent_turn_id END,
               CASE WHEN g.leases THEN g.inbox_id END, CASE WHEN g.leases THEN channel END,
               h.active_recursion_depth + 1, w.step_id, split_part(g.headers ->> 'traceparent', '-', 2),
               CASE WHEN g.leases THEN g.profile_box_id END,
               CASE WHEN g.leases THEN g.new_context_box_id END, CASE WHEN g.leases THEN g.outp END
        FROM go g ORDER BY g.agent_id, g.leases DESC
        ON CONFLICT (agent_id, project_id) DO UPDATE SET queue_seq = x.queue_seq + 1,  -- every enqueue changes the head
            status = CASE WHEN EXCLUDED.status = 'dispatched' THEN 'dispatched' ELSE x.status END,
            turn_epoch = CASE WHEN EXCLUDED.status = 'dispatched' THEN EXCLUDED.turn_epoch ELSE x.turn_epoch END,
            updated_at = CASE WHEN EXCLUDED.status = 'dispatched' THEN now() ELSE x.updated_at END,
            active_agent_turn_id = coalesce(EXCLUDED.active_agent_turn_id, x.active_agent_turn_id),
            active_inbox_id = coalesce(EXCLUDED.active_inbox_id, x.active_inbox_id),
            active_channel_id = coalesce(EXCLUDED.active_channel_id, x.active_channel_id),
            active_recursion_depth = CASE WHEN EXCLUDED.status = 'dispatched' THEN EXCLUDED.active_recursion_depth
                ELSE x.active_recursion_depth END,
            parent_step_id = CASE WHEN EXCLUDED.status = 'dispatched' THEN EXCLUDED.parent_step_id
                ELSE x.parent_step_id END,
            trace_id = CASE WHEN EXCLUDED.status = 'dispatched' THEN EXCLUDED.trace_id ELSE x.trace_id END,
            profile_box_id = coalesce(EXCLUDED.profile_box_id, x.profile_box_id),
            context_box_id = coalesce(EXCLUDED.context_box_id, x.context_box_id),
            output_box_id = coalesce(EXCLUDED.output_box_id, x.output_box_id),
            waiting_tool_count = CASE WHEN EXCLUDED.status = 'dispatched' THEN 0 ELSE x.waiting_tool_count END,
            resume_deadline = CASE WHEN EXCLUDED.status = 'dispatched' THEN NULL ELSE x.resume_deadline END,
            expecting_correlation_id = CASE WHEN EXCLUDED.status = 'dispatched' THEN NULL
                ELSE x.expecting_correlation_id END,
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
            (g.new_context_box_id, g.inherits, true), (g.outp, '{}'::uuid[], g.output_box_id IS NULL)) x (box_id,
                parents, wanted)
        WHERE x.wanted
    ),
    used AS (
        UPDATE public.boxes b SET unused_of = NULL
        WHERE b.box_id IN (SELECT unnest(g.inherits || g.output_box_id) FROM go g) AND b.unused_of IS NOT NULL
    ),
    made_cards AS (
        INSERT INTO public.cards (card_id, tenant_id, content, metadata)
        SELECT c ->> 'card_id', project, c -> 'content', c -> 'metadata' || jsonb_build_object(
                   'trace_id', split_part(g.headers ->> 'traceparent', '-', 2), 'parent_step_id', w.step_id)
        FROM go g CROSS JOIN jsonb_array_elements(g.cards) c
    ),
    boxed AS (  -- what it inherits, in order and each card once; then its own
        INSERT INTO public.box_cards (box_id, position, card_id)
        SELECT g.new_context_box_id, row_number() OVER (PARTITION BY g.agent_turn_id ORDER BY x.place, x.position),
            x.card_id
        FROM go g CROSS JOIN LATERAL (
            SELECT DISTINCT ON (y.card_id) y.place, y.position, y.card_id FROM (
                SELECT i.place, p.position, p.card_id FROM unnest(g.inherits) WITH ORDINALITY i (box_id, place)
                JOIN public.box_cards p ON p.box_id = i.box_id JOIN public.cards k ON k.card_id = p.card_id
                WHERE state.is_alive(k.expires_at, k.deleted_at)
                UNION ALL
                SELECT 1000000, o.position, o.c ->> 'card_id' FROM jsonb_array_elements(g.cards) WITH ORDINALITY o (c,
                    position)) y
            ORDER BY y.card_id, y.place, y.position) x
    ),
    edges AS (
        INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id,
                                           source_agent_turn_id, source_step_id, target_agent_id, target_agent_turn_id,
                                           correlation_id, enqueue_mode, recursion_depth, trace_id, parent_step_id,
                                           metadata)
        SELECT 'enqueue-' || g.agent_turn_id, project, channel, 'enqueue', 'request', w.agent_id, w.agent_turn_id,
               w.step_id, g.agent_id, g.agent_turn_id, g.correlation, 'call', h.active_recursion_depth + 1,
               split_part(g.headers ->> 'traceparent', '-', 2), w.step_id, jsonb_build_object('tool_call_id', call)
        FROM go g
        ON CONFLICT DO NOTHING
    ),
    nodes AS (
        INSERT INTO state.turn_nodes (agent_turn_id, project_id, parent_turn_id, root_turn_id, waited)
        SELECT g.agent_turn_id, project, w.agent_turn_id, root, batch IS NOT NULL FROM go g ORDER BY g.agent_turn_id
    ),
    tasks AS (
        UPDATE state.pmo_batch_tasks t SET status = CASE j.verdict WHEN 'accepted' THEN 'dispatched' ELSE 'failed' END,
               attempt_count = t.attempt_count + 1, updated_at = now(), agent_id = j.agent_id,
               profile_box_id = j.profile_box_id,
               current_agent_turn_id = CASE j.verdict WHEN 'accepted' THEN j.agent_turn_id END,
               current_turn_epoch = CASE WHEN j.verdict = 'accepted' AND j.leases THEN j.epoch + 1 END,
               context_box_id = CASE j.verdict WHEN 'accepted' THEN j.new_context_box_id END,
               output_box_id = CASE j.verdict WHEN 'accepted' THEN j.outp END,
               error_code = CASE WHEN j.verdict <> 'accepted' THEN j.verdict END,
               error_detail = CASE WHEN j.refusal IS NULL THEN t.error_detail
                   ELSE state.told_of_refusal(j.refusal)::text END
        FROM judged j WHERE t.batch_task_id = batch || '-' || j.task_index
    ),
    counted AS (
        UPDATE state.pmo_batches x SET open_count = x.open_count - n.refused, failed_count = x.failed_count + n.refused,
            updated_at = now()
        FROM (SELECT count(*) FILTER (WHERE j.verdict <> 'accepted') AS refused FROM judged j) n
        WHERE x.batch_id = batch
    )
    SELECT j.task_index, j.verdict, j.agent_id, j.agent_turn_id, j.inbox_id,
           CASE WHEN j.leases THEN j.epoch + 1 ELSE 0 END AS turn_epoch,
           CASE WHEN j.verdict = 'accepted' AND j.leases THEN now() END AS leased_at, j.target, j.headers,
           j.new_context_box_id, j.outp, j.refusal, j.plan
    FROM judged j ORDER BY j.task_index
    LOOP
        IF made.verdict = 'accepted' AND made.plan IS NOT NULL THEN
            plans := plans || jsonb_build_object('agent_turn_id', made.agent_turn_id, 'budget', made.plan);
        END IF;
        RETURN QUERY SELECT made.task_index, made.verdict, made.agent_id, made.agent_turn_id, made.inbox_id,
                            made.turn_epoch, made.leased_at, made.target, channel, made.headers,
                            made.new_context_box_id, made.outp, made.refusal;
    END LOOP;
    IF batch IS NOT NULL THEN
        SELECT x.* INTO b FROM state.pmo_batches x WHERE x.batch_id = batch;
        decided := state.verdict_of(b);
        IF decided IS NOT NULL AND b.status = 'running' THEN
            losers := state.decide(batch, decided, batch, CASE b.losers WHEN 'stop' THEN 'canceled' ELSE 'running' END);
            PERFORM state.mark_subtrees(losers, 'batch_decided', batch, false, NULL);
        END IF;
    END IF;
    PERFORM state.grant_children(project, channel, plans);  -- last: it locks budgets
END $$;
