-- Statements of the version before migration 0018 that this version has changed: what its processes still run during an upgrade.

-- name: enqueue_turn :one
-- Writes inbox row, edge, boxes and cards of a new turn. An idle agent is leased to its oldest turn whose output box is free;
-- else the row is queued. A UI action is never queued: it is leased at once or nothing is written.
-- verdict: accepted | duplicate | busy | again (repeat the statement) | headless (make_head first) | the code of a refusal or limit.
WITH
first AS MATERIALIZED (  -- an earlier enqueue under this correlation
    SELECT i.* FROM state.agent_inbox i
    WHERE i.correlation_id = :correlation_id AND i.project_id = :project_id AND i.message_type IN {turn_types}
    ORDER BY i.message_type <> :message_type LIMIT 1
),
held AS MATERIALIZED (  -- the boxes that are there already: retention passes by what is locked, and is waited for where it came first
    SELECT b.box_id FROM public.boxes b
    WHERE b.box_id = ANY (ARRAY[:context_box_id::uuid, :output_box_id::uuid, (
            SELECT m.memory_context_box_id FROM state.agent_state_pointers m
            WHERE m.agent_id = :agent_id AND m.project_id = :project_id AND NOT :has_instruction::boolean)])
      AND b.tenant_id = :project_id
    ORDER BY b.box_id FOR KEY SHARE
),
plan AS MATERIALIZED (  -- always one row: what the request comes to, and whether it may
    SELECT a.worker_target, coalesce(state.as_uuid(p.profile_box_id), a.profile_box_id) AS profile_box_id,
           CASE WHEN cardinality(:card_ids::text[]) > 0 THEN :new_context_box_id::uuid ELSE s.source_box_id END AS context_box_id,
           s.source_box_id, coalesce(:output_box_id::uuid, :new_output_box_id::uuid) AS output_box_id, d.depth,
           CASE
               WHEN f.inbox_id IS NOT NULL AND f.request_digest IS NOT DISTINCT FROM :request_digest THEN 'duplicate'
               WHEN f.inbox_id IS NOT NULL THEN 'correlation_conflict'
               WHEN :over_rate::boolean THEN 'rate_limited'
               WHEN a.agent_id IS NULL AND NOT EXISTS (SELECT FROM resource.project_agents WHERE project_id COLLATE "C" = :project_id)
                    AND NOT EXISTS (SELECT FROM resource.profiles WHERE project_id = :project_id) THEN 'unknown_project'
               WHEN a.agent_id IS NULL THEN 'unknown_agent'
               WHEN a.status <> 'active' THEN 'agent_inactive'
               WHEN :profile_name::text IS NOT NULL AND p.profile_box_id IS NULL THEN 'unknown_profile'
               WHEN d.depth >= :depth_limit::int THEN 'recursion_depth_exceeded'
               WHEN s.source_box_id IS NULL AND NOT :has_instruction::boolean THEN 'nothing_to_do'
               WHEN s.source_box_id IS NOT NULL AND s.source_box_id NOT IN (SELECT held.box_id FROM held) THEN 'unknown_context_box'
               WHEN :output_box_id::uuid IS NOT NULL AND :output_box_id::uuid NOT IN (SELECT held.box_id FROM held)
               THEN 'unknown_output_box'
               WHEN cardinality(:card_ids::text[]) = 0 AND s.source_box_id = :output_box_id::uuid THEN 'context_is_output'
               WHEN :max_live_turns::int > 0 AND (  -- rows until they are begun, heads from then on
                    SELECT count(*) FROM (
                        SELECT FROM state.agent_inbox l WHERE l.project_id COLLATE "C" = :project_id AND l.archived_at IS NULL AND l.inbox_id >= ''
                            AND l.message_type IN {turn_types} LIMIT :max_live_turns::int * c.share) l) + (
                    SELECT count(*) FROM (
                        SELECT FROM state.agent_state_head b WHERE b.project_id COLLATE "C" = :project_id
                            AND b.agent_id >= '' AND b.output_box_id IS NOT NULL AND b.status <> 'dispatched' LIMIT :max_live_turns::int * c.share) b)
                    >= :max_live_turns::int * c.share THEN 'project_full'
               ELSE 'accepted'
           END AS verdict
    FROM (SELECT) AS always
    LEFT JOIN first f ON true
    LEFT JOIN resource.project_agents a ON a.agent_id = :agent_id AND a.project_id = :project_id
    LEFT JOIN resource.profiles p ON lower(p.name) = lower(:profile_name::text) AND p.project_id = :project_id
    CROSS JOIN LATERAL (
        SELECT coalesce(:context_box_id::uuid, CASE WHEN NOT :has_instruction::boolean THEN (
            SELECT m.memory_context_box_id FROM state.agent_state_pointers m
            WHERE m.agent_id = :agent_id AND m.project_id = :project_id) END) AS source_box_id) s
    CROSS JOIN LATERAL (  -- a child is one deeper than its parent's row, and never less deep than its headers say
        SELECT greatest(:header_depth::int, (
            SELECT max(coalesce(state.as_count(t.context_headers ->> 'CG-Recursion-Depth'), 0)) + 1 FROM state.agent_inbox t
            WHERE t.agent_turn_id = :parent_turn_id::text AND t.project_id = :project_id
              AND t.message_type IN {turn_types})) AS depth) d
    CROSS JOIN LATERAL (  -- a child of a turn in hand: refused, it could keep its parent from ending
        SELECT CASE WHEN EXISTS (
            SELECT FROM state.agent_inbox t
            JOIN state.agent_state_head h ON h.agent_id = t.agent_id AND h.project_id = t.project_id
            WHERE t.agent_turn_id = :parent_turn_id::text AND t.project_id = :project_id
              AND t.message_type IN {turn_types} AND h.active_agent_turn_id = t.agent_turn_id)
            THEN :child_share::int ELSE 1 END AS share) c
),
head AS MATERIALIZED (  -- from here on the agent is ours
    SELECT h.status, h.turn_epoch, h.queue_seq, h.xmin AS version FROM plan JOIN state.agent_state_head h ON plan.verdict = 'accepted'
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id FOR NO KEY UPDATE OF h
),
older AS MATERIALIZED (  -- an idle agent owes its lease to a turn that waits already, if its box has become free
    SELECT q.* FROM head CROSS JOIN LATERAL (
        SELECT q.* FROM state.queued_turns q
        WHERE q.agent_id = :agent_id AND q.project_id = :project_id
          AND NOT EXISTS (SELECT FROM state.agent_state_head busy WHERE busy.output_box_id = q.output_box_id)
        ORDER BY q.created_at LIMIT 1 FOR NO KEY UPDATE OF q) q
    WHERE head.status = 'idle'
),
go AS MATERIALIZED (
    SELECT plan.*, head.turn_epoch, older.inbox_id AS older_inbox_id, lease.leases_mine,
           :context_headers::jsonb || jsonb_build_object('CG-Recursion-Depth', plan.depth::text) AS headers,
           CASE WHEN lease.leases_mine OR :max_queued_turns::int = 0 THEN 'free'
                WHEN queue.found >= :max_queued_turns::int THEN 'full'
                -- what came while we waited for the head may have filled it: look again, so that the limit is exact
                WHEN queue.found + head.queue_seq - seen.queue_seq >= :max_queued_turns::int THEN 'unsure'
                ELSE 'free' END AS queue
    FROM plan CROSS JOIN head LEFT JOIN older ON true
    JOIN state.agent_state_head seen ON seen.agent_id = :agent_id AND seen.project_id = :project_id
    CROSS JOIN LATERAL (
        SELECT (head.status = 'idle' AND older.inbox_id IS NULL AND NOT EXISTS (
               SELECT FROM state.agent_state_head busy  -- not our own head: it is idle, whatever our snapshot says
               WHERE busy.output_box_id = plan.output_box_id AND busy.agent_id <> :agent_id)
            AND NOT (:message_type::text = 'ui_action' AND EXISTS (  -- whatever it waits for
               SELECT FROM state.queued_turns q WHERE q.agent_id = :agent_id AND q.project_id = :project_id))) AS leases_mine) lease
    CROSS JOIN LATERAL (
        SELECT count(*) AS found FROM (
            SELECT FROM state.agent_inbox q
            WHERE q.agent_id = :agent_id AND q.project_id = :project_id AND q.archived_at IS NULL AND q.next_retry_at = 'infinity'
              AND :max_queued_turns::int > 0 LIMIT :max_queued_turns::int) q) queue
    WHERE :message_type = 'turn' OR seen.xmin = head.version  -- to be busy is no guess: it saw the queue, and its own repeat
),
mine AS (
    INSERT INTO state.agent_inbox AS i
        (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id, turn_epoch,
         context_headers, payload, status, next_retry_at, created_at, request_digest)
    SELECT :inbox_id, :project_id, :agent_id, :channel_id, :message_type, 'call', :correlation_id, :agent_turn_id,
           CASE WHEN go.leases_mine THEN go.turn_epoch + 1 ELSE 0 END, go.headers,
           jsonb_build_object('profile_box_id', go.profile_box_id, 'context_box_id', go.context_box_id,
                              'output_box_id', go.output_box_id, 'runtime_config', :runtime_config::jsonb)
           || CASE WHEN :message_type = 'ui_action' THEN jsonb_build_object('ui_action', :ui_action::jsonb) ELSE '{}' END,
           CASE WHEN go.leases_mine THEN 'pending' ELSE 'queued' END,
           CASE WHEN go.leases_mine THEN now() ELSE 'infinity' END, clock_timestamp(), :request_digest
    FROM go WHERE go.leases_mine OR (:message_type = 'turn' AND go.queue = 'free')
    ON CONFLICT DO NOTHING
    RETURNING i.inbox_id, i.agent_turn_id, i.turn_epoch, i.status
),
lease AS MATERIALIZED (
    SELECT o.inbox_id, o.agent_turn_id, o.channel_id, o.profile_box_id, o.context_box_id, o.output_box_id, o.trace_id,
           o.parent_step_id, o.recursion_depth, o.context_headers
    FROM older o CROSS JOIN mine
    UNION ALL
    SELECT mine.inbox_id, mine.agent_turn_id, :channel_id, go.profile_box_id, go.context_box_id, go.output_box_id,
           split_part(go.headers ->> 'traceparent', '-', 2), go.headers ->> 'CG-Parent-Step-Id', go.depth, go.headers
    FROM mine CROSS JOIN go WHERE go.leases_mine
),
counted AS (  -- every enqueue changes the head, or a finish that waits for us would not see our row
    UPDATE state.agent_state_head h SET queue_seq = h.queue_seq + 1
    FROM mine WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND NOT EXISTS (SELECT FROM lease)
),
leased AS (
    UPDATE state.agent_state_head h SET
        status = 'dispatched', turn_epoch = h.turn_epoch + 1, queue_seq = h.queue_seq + 1, updated_at = now(),
        active_agent_turn_id = l.agent_turn_id, active_inbox_id = l.inbox_id, active_channel_id = l.channel_id,
        active_recursion_depth = l.recursion_depth, parent_step_id = l.parent_step_id, trace_id = l.trace_id,
        profile_box_id = l.profile_box_id, context_box_id = l.context_box_id, output_box_id = l.output_box_id,
        waiting_tool_count = 0, resume_deadline = NULL, expecting_correlation_id = NULL, restart_count = 0,
        output_position = 0, step_count = 0, step_attempt = 0, model_failures = 0, started_at = NULL
    FROM lease l WHERE h.agent_id = :agent_id AND h.project_id = :project_id
    RETURNING l.inbox_id, l.agent_turn_id, l.channel_id, l.context_headers, h.turn_epoch
),
moved AS (
    UPDATE state.agent_inbox i SET status = 'pending', next_retry_at = now(), turn_epoch = leased.turn_epoch
    FROM leased JOIN older USING (inbox_id) WHERE i.inbox_id = older.inbox_id
),
edge AS (
    INSERT INTO state.execution_edges
        (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id, source_agent_turn_id, source_step_id,
         target_agent_id, target_agent_turn_id, correlation_id, enqueue_mode, recursion_depth, trace_id, parent_step_id, metadata)
    SELECT 'enqueue-' || :agent_turn_id, :project_id, :channel_id, 'enqueue', 'request', go.headers ->> 'CG-Parent-Agent-Id',
           go.headers ->> 'CG-Parent-Turn-Id', go.headers ->> 'CG-Parent-Step-Id', :agent_id, :agent_turn_id, :correlation_id,
           'call', go.depth, split_part(go.headers ->> 'traceparent', '-', 2), go.headers ->> 'CG-Parent-Step-Id', :metadata::jsonb
    FROM mine CROSS JOIN go
    ON CONFLICT DO NOTHING
),
made_boxes AS (
    INSERT INTO public.boxes (box_id, tenant_id, parent_ids)
    SELECT b.box_id, :project_id, b.parents FROM mine CROSS JOIN go CROSS JOIN LATERAL (VALUES
        (go.context_box_id, CASE WHEN go.source_box_id IS NULL THEN '{}'::uuid[] ELSE ARRAY[go.source_box_id] END,
         cardinality(:card_ids::text[]) > 0),
        (go.output_box_id, '{}'::uuid[], :output_box_id::uuid IS NULL)) b (box_id, parents, wanted)
    WHERE b.wanted
),
made_cards AS (
    INSERT INTO public.cards (card_id, tenant_id, content, metadata)
    SELECT c.card_id, :project_id, c.content, c.metadata || jsonb_build_object(
               'trace_id', split_part(go.headers ->> 'traceparent', '-', 2), 'parent_step_id', go.headers ->> 'CG-Parent-Step-Id')
    FROM mine CROSS JOIN go
    CROSS JOIN unnest(:card_ids::text[], :card_contents::jsonb[], :card_metadatas::jsonb[]) c (card_id, content, metadata)
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT go.context_box_id, row_number() OVER (ORDER BY x.part, x.position), x.card_id
    FROM mine CROSS JOIN go CROSS JOIN LATERAL (
        SELECT 1 AS part, s.position, s.card_id FROM public.box_cards s WHERE s.box_id = go.source_box_id
        UNION ALL
        SELECT 2, n.position, n.card_id FROM unnest(:card_ids::text[]) WITH ORDINALITY n (card_id, position)) x
    WHERE cardinality(:card_ids::text[]) > 0
)
SELECT CASE
           WHEN mine.inbox_id IS NOT NULL THEN 'accepted'
           WHEN plan.verdict <> 'accepted' THEN plan.verdict
           WHEN NOT EXISTS (SELECT FROM head) THEN 'headless'
           WHEN :message_type = 'ui_action' AND EXISTS (SELECT FROM go WHERE NOT go.leases_mine) THEN 'busy'
           WHEN EXISTS (SELECT FROM go WHERE go.queue = 'full') THEN 'queue_full'
           ELSE 'again'
       END AS verdict,
       coalesce(mine.agent_turn_id, f.agent_turn_id) AS agent_turn_id, coalesce(mine.turn_epoch, f.turn_epoch) AS turn_epoch,
       coalesce(mine.inbox_id, f.inbox_id) AS inbox_id, coalesce(mine.status, f.status) AS inbox_status,
       coalesce(state.as_uuid(f.payload ->> 'context_box_id'), plan.context_box_id)::text AS context_box_id,
       coalesce(state.as_uuid(f.payload ->> 'output_box_id'), plan.output_box_id)::text AS output_box_id,
       split_part(coalesce(f.context_headers, :context_headers::jsonb) ->> 'traceparent', '-', 2) AS trace_id,
       plan.worker_target, leased.context_headers, leased.inbox_id AS leased_inbox_id,
       leased.agent_turn_id AS leased_turn_id, leased.channel_id AS leased_channel_id, leased.turn_epoch AS leased_epoch
FROM plan LEFT JOIN mine ON true LEFT JOIN first f ON true LEFT JOIN leased ON true;

-- name: put_profile :one
-- Makes a sys.profile card in a new box, to which the profile of that name and the agents with its old box then point.
-- verdict: created | replaced | again (this statement waited for another put or add_agent, so its snapshot is old).
WITH
held AS MATERIALIZED (
    SELECT p.profile_box_id, p.xmin AS version FROM resource.profiles p
    WHERE lower(p.name) = lower(:name) AND p.project_id = :project_id FOR UPDATE
),
old AS MATERIALIZED (
    SELECT held.profile_box_id FROM held JOIN resource.profiles seen ON lower(seen.name) = lower(:name) AND seen.project_id = :project_id
    WHERE seen.xmin = held.version
),
box AS (
    INSERT INTO public.boxes (box_id, tenant_id) SELECT :box_id::uuid, :project_id
    WHERE EXISTS (SELECT FROM old) OR NOT EXISTS (SELECT FROM held) RETURNING box_id
),
card AS (
    INSERT INTO public.cards (card_id, tenant_id, content, metadata)
    SELECT :card_id, :project_id, :content::jsonb, :metadata::jsonb FROM box RETURNING card_id
),
boxed AS (INSERT INTO public.box_cards (box_id, position, card_id) SELECT box.box_id, 1, card.card_id FROM box CROSS JOIN card),
repointed AS (
    UPDATE resource.profiles p SET profile_box_id = :box_id, name = :name, worker_target = :worker_target, tags = :tags::jsonb,
           system_prompt_compiled = :system_prompt, updated_at = now()
    FROM old WHERE p.profile_box_id = old.profile_box_id AND p.project_id = :project_id
),
let_go AS (  -- an enqueue in flight may still name it: retention counts its age from here
    UPDATE public.boxes b SET updated_at = now() FROM old WHERE b.box_id = state.as_uuid(old.profile_box_id)
),
made AS (
    INSERT INTO resource.profiles (project_id, profile_box_id, name, worker_target, tags, system_prompt_compiled)
    SELECT :project_id, :box_id, :name, :worker_target, :tags::jsonb, :system_prompt WHERE NOT EXISTS (SELECT FROM held)
    RETURNING 1
),
agents AS (
    UPDATE resource.project_agents a SET profile_box_id = :box_id::uuid
    FROM old WHERE a.profile_box_id = state.as_uuid(old.profile_box_id) AND a.project_id = :project_id RETURNING 1
)
SELECT CASE WHEN EXISTS (SELECT FROM made) THEN 'created' WHEN EXISTS (SELECT FROM old) THEN 'replaced' ELSE 'again' END AS verdict,
       (SELECT count(*) FROM agents) AS agents;

-- name: touch_worker :exec
-- Signs a worker on for these targets, and for these listeners of the pump's target. After a gap of more than silent_seconds, or
-- with anew, started_at becomes now. Removes workers that have been gone for long.
WITH gone AS (
    DELETE FROM state.workers w WHERE w.last_seen_at < now() - interval '1 day' AND w.instance <> :instance
)
INSERT INTO state.workers AS w (worker_target, instance, last_seen_at, listeners, payloads)
SELECT DISTINCT t.worker_target, :instance, now(), CASE WHEN t.worker_target = :pump_target THEN :listeners::text[] END,
       CASE WHEN t.worker_target = :pump_target THEN :payloads::text[] END
FROM unnest(:worker_targets::text[]) t (worker_target)
ON CONFLICT (worker_target, instance) DO UPDATE SET last_seen_at = EXCLUDED.last_seen_at,
    listeners = EXCLUDED.listeners, payloads = EXCLUDED.payloads,
    started_at = CASE WHEN :restarted::bool OR w.last_seen_at < now() - make_interval(secs => :silent_seconds::float8)
                      THEN now() ELSE w.started_at END;

-- name: commit_step :opt
-- Commits a step that does not end the turn: its row, its cards at the end of the output box, the head on the next step. With
-- calls (command_intent, §6): waiting rows, edges tool_call/request and the suspended head, before any command is published.
-- result: done | already (committed before, and the gate is open). No row: stale.
WITH
head AS (
    UPDATE state.agent_state_head h SET
        updated_at = now(), output_position = cardinality(:card_ids::text[]) + greatest(h.output_position, (
            SELECT max(b.position) FROM public.box_cards b WHERE b.box_id = h.output_box_id)),
        step_count = :step::int, step_attempt = 0, model_failures = 0,
        status = CASE cardinality(:call_ids::text[]) WHEN 0 THEN h.status ELSE 'suspended' END,
        waiting_tool_count = cardinality(:call_ids::text[]), expecting_correlation_id = NULL,
        resume_deadline = CASE cardinality(:call_ids::text[]) WHEN 0 THEN NULL
                          ELSE clock_timestamp() + make_interval(secs => :wait_seconds::float8) END
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status = 'running' AND h.step_count = :step::int - 1
    RETURNING h.*, h.output_position - cardinality(:card_ids::text[]) AS base
),
step AS (
    INSERT INTO state.agent_steps (project_id, agent_id, step_id, agent_turn_id, channel_id, parent_step_id, trace_id, status,
                                   profile_box_id, context_box_id, output_box_id, tool_call_ids, metadata, started_at, ended_at)
    SELECT :project_id, :agent_id, :step_id, :agent_turn_id, head.active_channel_id, head.parent_step_id, head.trace_id,
           'completed', head.profile_box_id, head.context_box_id, head.output_box_id, :tool_call_ids::jsonb,
           :step_metadata::jsonb, :step_started_at::timestamptz, clock_timestamp()
    FROM head
),
cards AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_calls, tool_call_id, metadata)
    SELECT c.card_id, :project_id, c.content, c.tool_calls, c.tool_call_id, c.metadata FROM head
    CROSS JOIN unnest(:card_ids::text[], :card_contents::jsonb[], :card_tool_calls::jsonb[], :card_tool_call_ids::text[],
                      :card_metadatas::jsonb[]) c (card_id, content, tool_calls, tool_call_id, metadata)
    WHERE c.card_id <> ALL (:kept_ids::text[])
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT head.output_box_id, head.base + c.ordinal, c.card_id FROM head
    CROSS JOIN unnest(:card_ids::text[]) WITH ORDINALITY c (card_id, ordinal)
),
waiting AS (
    INSERT INTO state.turn_waiting_tools (project_id, agent_id, agent_turn_id, turn_epoch, step_id, tool_call_id, tool_name)
    SELECT :project_id, :agent_id, :agent_turn_id, :turn_epoch, :step_id, c.id, c.name FROM head
    CROSS JOIN unnest(:call_ids::text[], :call_names::text[]) c (id, name)
),
edges AS (
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id, source_agent_turn_id,
                                       source_step_id, target_agent_id, target_agent_turn_id, correlation_id, recursion_depth, trace_id,
                                       parent_step_id, metadata)
    SELECT 'tool-call-' || c.id, :project_id, head.active_channel_id, 'tool_call', 'request', :agent_id, :agent_turn_id, :step_id,
           :agent_id, :agent_turn_id, c.id, head.active_recursion_depth, head.trace_id, :step_id, jsonb_build_object('tool_name', c.name)
    FROM head CROSS JOIN unnest(:call_ids::text[], :call_names::text[]) c (id, name)
    ON CONFLICT DO NOTHING
)
SELECT 'done' AS result, head.status, head.updated_at, head.resume_deadline, :step_metadata::jsonb AS step_metadata FROM head
UNION ALL
SELECT 'already', h.status, h.updated_at, h.resume_deadline, s.metadata FROM state.agent_steps s
JOIN state.agent_state_head h ON h.agent_id = :agent_id AND h.project_id = :project_id
    AND h.active_agent_turn_id = :agent_turn_id AND h.turn_epoch = :turn_epoch
WHERE s.step_id = :step_id AND s.project_id = :project_id;

-- name: inject_timeouts :many
-- At the deadline: a timeout card and inbox row for each call that still waits unreported; the deadline is cleared. The
-- workflow's timer and the watchdog use this one statement: a second run finds the first one's rows and returns them.
WITH
head AS MATERIALIZED (
    SELECT h.* FROM state.agent_state_head h
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status = 'suspended' AND (h.resume_deadline IS NULL OR h.resume_deadline <= now())
    FOR NO KEY UPDATE
),
late AS MATERIALIZED (
    SELECT w.* FROM head JOIN state.turn_waiting_tools w ON w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id
    WHERE w.turn_epoch = :turn_epoch AND w.wait_status = 'waiting' ORDER BY w.tool_call_id FOR NO KEY UPDATE OF w
),
dropped AS (  -- without a call card nobody can ever answer: it leaves the count
    UPDATE state.turn_waiting_tools w SET wait_status = 'dropped', updated_at = now()
    FROM late WHERE w.tool_call_id = late.tool_call_id AND w.project_id = late.project_id
      AND NOT EXISTS (SELECT FROM public.cards c WHERE c.card_id = late.tool_call_id || '-call' AND c.tenant_id = :project_id)
    RETURNING w.tool_call_id
),
expired AS MATERIALIZED (SELECT late.* FROM late WHERE late.tool_call_id NOT IN (SELECT d.tool_call_id FROM dropped d)),
inbox AS (
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                                   turn_epoch, context_headers, payload, status, next_retry_at, created_at)
    SELECT 'timeout-' || x.tool_call_id, :project_id, :agent_id, head.active_channel_id, 'timeout', 'report', x.tool_call_id,
           :agent_turn_id, :turn_epoch, jsonb_build_object('CG-Recursion-Depth', head.active_recursion_depth::text,
               'traceparent', (SELECT i.context_headers ->> 'traceparent' FROM state.agent_inbox i WHERE i.inbox_id = head.active_inbox_id)),
           jsonb_build_object('status', 'timeout', 'after_execution', NULL, 'tool_result_card_id', x.tool_call_id || '-timeout'),
           'pending', now(), clock_timestamp()
    FROM expired x CROSS JOIN head
    ON CONFLICT DO NOTHING
    RETURNING inbox_id, correlation_id
),
cards AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    SELECT x.tool_call_id || '-timeout', :project_id, jsonb_build_object('__type__', 'ToolResultContent', 'status', 'timeout',
               'after_execution', state.after_execution_of(:project_id, x.tool_name), 'result', NULL,
               'error', jsonb_build_object('code', 'tool_timeout', 'message', 'the tool did not answer in time')),
           x.tool_call_id, jsonb_build_object('type', 'tool.result', 'role', 'tool', 'author_id', 'system', 'function_name', x.tool_name,
               'step_id', x.step_id, 'agent_turn_id', :agent_turn_id::text, 'trace_id', head.trace_id)
    FROM inbox JOIN expired x ON x.tool_call_id = inbox.correlation_id CROSS JOIN head
    ON CONFLICT DO NOTHING
),
edges AS (
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    SELECT 'report-' || x.tool_call_id, :project_id, head.active_channel_id, 'report', 'response', :agent_id, :agent_turn_id,
           x.tool_call_id, head.active_recursion_depth, head.trace_id, x.step_id, '{"status": "timeout"}'
    FROM inbox JOIN expired x ON x.tool_call_id = inbox.correlation_id CROSS JOIN head
    ON CONFLICT DO NOTHING
),
cleared AS (  -- and if no other call is left to wait for, the turn goes on; a repeat is no sign of life
    UPDATE state.agent_state_head h SET resume_deadline = NULL, updated_at = now(),
           waiting_tool_count = h.waiting_tool_count - (SELECT count(*) FROM dropped),
           status = CASE (SELECT count(*) FROM dropped) WHEN h.waiting_tool_count THEN 'running' ELSE h.status END
    FROM head WHERE h.agent_id = :agent_id AND h.project_id = :project_id
      AND (h.resume_deadline IS NOT NULL OR EXISTS (SELECT FROM dropped) OR EXISTS (SELECT FROM inbox))
)
SELECT i.inbox_id, 'timeout' AS message_type, i.correlation_id FROM inbox i
UNION
SELECT i.inbox_id, i.message_type, i.correlation_id FROM head
JOIN state.turn_waiting_tools w ON w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id
JOIN state.agent_inbox i ON i.correlation_id = w.tool_call_id AND i.project_id = :project_id
    AND i.message_type IN {report_types}
WHERE w.wait_status IN ('waiting', 'received') AND i.archived_at IS NULL AND (i.status <> 'deferred' OR i.next_retry_at <= now());

-- name: begin_step :many
-- Begins a step: dispatched | running -> running; counts the attempt and consumes the turn's inbox row. Returns the step's
-- input in the order of §7.2: first a row 'head' (its JSON in content), then the cards of the profile, context and output
-- boxes (part 1, 2, 3) after the positions that the caller knows. No rows: the gate is closed, or the step is not the next.
WITH
head AS (
    UPDATE state.agent_state_head h SET
        status = 'running', updated_at = now(), step_attempt = h.step_attempt + 1, started_at = coalesce(h.started_at, now()),
        output_position = greatest(h.output_position, (SELECT max(b.position) FROM public.box_cards b WHERE b.box_id = h.output_box_id))
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status IN ('dispatched', 'running')
      AND (:step::int = 0 OR h.step_count = :step::int - 1)
      AND EXISTS (SELECT FROM state.agent_inbox i WHERE i.inbox_id = h.active_inbox_id AND i.agent_turn_id = :agent_turn_id
                  AND i.agent_id = :agent_id AND i.project_id = :project_id AND i.turn_epoch = :turn_epoch)
    RETURNING h.*
),
inbox AS (
    UPDATE state.agent_inbox i SET status = 'consumed', archived_at = now()
    FROM head WHERE i.inbox_id = head.active_inbox_id AND i.archived_at IS NULL
)
SELECT 0 AS part, 0::bigint AS position, NULL AS card_id, jsonb_build_object(
           'message_type', i.message_type, 'status', head.status, 'step_count', head.step_count, 'step_attempt', head.step_attempt,
           'model_failures', head.model_failures, 'output_position', head.output_position,
           'trace_id', head.trace_id, 'parent_step_id', head.parent_step_id,
           'updated_at', head.updated_at, 'started_at', head.started_at, 'enqueued_at', i.created_at,
           'context_headers', i.context_headers, 'runtime_config', coalesce(i.payload -> 'runtime_config', '{}'),
           'profile_box_id', head.profile_box_id, 'context_box_id', head.context_box_id, 'output_box_id', head.output_box_id,
           'tools', CASE WHEN head.step_count = 0 THEN coalesce((
               SELECT jsonb_agg(to_jsonb(t) - 'project_id' ORDER BY t.tool_name) FROM resource.tools t
               WHERE t.project_id = :project_id), '[]') ELSE '[]' END,
           'due_at', i.next_retry_at,
           'suspended_at', CASE WHEN head.step_count > 0 THEN (
               SELECT s.ended_at FROM state.agent_steps s WHERE s.step_id = :agent_turn_id || '-s' || head.step_count
                 AND s.project_id = :project_id AND s.metadata ->> 'next' = 'suspend') END,
           'turn_config', (SELECT s.metadata -> 'turn_config' FROM state.agent_steps s
                           WHERE s.step_id = :agent_turn_id || '-s1' AND s.project_id = :project_id),
           'answered', CASE WHEN head.step_count = 0 THEN '[]' ELSE coalesce((
               SELECT jsonb_agg(jsonb_build_object('tool_call_id', w.tool_call_id, 'tool_name', w.tool_name,
                   'tool_result_card_id', w.tool_result_card_id, 'after_execution', (
                       SELECT r.payload ->> 'after_execution' FROM state.agent_inbox r
                       WHERE r.correlation_id = w.tool_call_id AND r.project_id = :project_id
                         AND r.message_type = CASE w.wait_status WHEN 'expired' THEN 'timeout' ELSE 'tool_result' END)))
               FROM state.turn_waiting_tools w WHERE w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id
                 AND w.step_id = :agent_turn_id || '-s' || head.step_count AND w.wait_status IN ('applied', 'expired')), '[]') END) AS content,
       NULL::jsonb AS tool_calls, NULL AS tool_call_id, NULL::jsonb AS metadata
FROM head JOIN state.agent_inbox i ON i.inbox_id = head.active_inbox_id
UNION ALL
SELECT x.part, c.position, c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata
FROM head CROSS JOIN LATERAL (VALUES (1, head.profile_box_id, :known_profile::bigint), (2, head.context_box_id, :known_context::bigint),
                                     (3, head.output_box_id, :known_output::bigint)) x (part, box_id, known)
CROSS JOIN LATERAL (
    SELECT b.position, c.* FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
    WHERE b.box_id = x.box_id AND b.position > x.known OFFSET 0) c
ORDER BY 1, 2;

-- name: apply_reports :opt
-- Applies reports while the head is suspended: each waiting row has one winner, whose card enters the output box; the other rows
-- are settled. A card that is not visible yet defers its row; the last retry writes a failed result instead. A card of another
-- kind or call, or by an agent, breaks the protocol: its row ends as error, a rejection says whose it was and why, and the call
-- still waits. result: done | again (the snapshot was old). No row: the gate is closed.
WITH
head AS MATERIALIZED (
    SELECT h.* FROM state.agent_state_head h
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status IN ('running', 'suspended')
    FOR NO KEY UPDATE
),
go AS MATERIALIZED (
    SELECT head.*, greatest(head.output_position, (
               SELECT max(b.position) FROM public.box_cards b WHERE b.box_id = head.output_box_id)) AS base
    FROM head JOIN state.agent_state_head seen ON seen.agent_id = head.agent_id AND seen.project_id = head.project_id
    WHERE (seen.status, seen.turn_epoch, seen.output_position, seen.waiting_tool_count)
        = (head.status, head.turn_epoch, head.output_position, head.waiting_tool_count)
),
calls AS MATERIALIZED (  -- the turn's calls that still wait, locked before any inbox row
    SELECT w.tool_call_id, w.tool_name, w.step_id FROM go
    JOIN state.turn_waiting_tools w ON w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id AND w.turn_epoch = :turn_epoch
    WHERE go.status = 'suspended' AND w.wait_status IN ('waiting', 'received')
    ORDER BY w.tool_call_id FOR NO KEY UPDATE OF w
),
due AS MATERIALIZED (
    SELECT i.inbox_id, i.project_id, i.message_type, i.correlation_id, i.created_at, i.retry_count, i.agent_turn_id, i.turn_epoch,
           i.payload ->> 'tool_result_card_id' AS card_id
    FROM go JOIN state.agent_inbox i ON i.inbox_id = ANY (:inbox_ids::text[])
    WHERE i.agent_id = :agent_id AND i.project_id = :project_id AND i.archived_at IS NULL
      AND i.message_type IN {report_types} AND (i.status <> 'deferred' OR i.next_retry_at <= now())
      AND (SELECT count(*) FROM calls) >= 0
    FOR NO KEY UPDATE OF i
),
judged AS MATERIALIZED (
    SELECT due.*, calls.tool_name, calls.step_id, CASE
               WHEN due.agent_turn_id IS DISTINCT FROM :agent_turn_id OR due.turn_epoch IS DISTINCT FROM :turn_epoch THEN 'stale'
               WHEN calls.tool_call_id IS NULL THEN 'settled'
               WHEN c.card_id IS NULL AND due.retry_count >= 3 THEN 'exhausted'
               WHEN c.card_id IS NULL THEN 'deferred'
               WHEN flaw.told IS NOT NULL THEN 'violation'
               ELSE 'good' END AS verdict, flaw.told AS flaw, coalesce(left(c.metadata ->> 'author_id', 128), 'nobody') AS author
    FROM due LEFT JOIN calls ON calls.tool_call_id = due.correlation_id
    LEFT JOIN public.cards c ON c.card_id = due.card_id AND c.tenant_id = :project_id
    CROSS JOIN LATERAL (SELECT CASE
        WHEN c.metadata ->> 'type' IS DISTINCT FROM 'tool.result' THEN 'its card is no tool.result'
        WHEN c.tool_call_id IS DISTINCT FROM calls.tool_call_id THEN 'its card is for another call'
        WHEN NOT state.is_service(c.metadata ->> 'author_id') THEN 'its card is by no tool.… or sys.… and not by the system' END) flaw (told)
),
refused AS (
    INSERT INTO state.rejections (project_id, source, error_code, error, ids)
    SELECT :project_id, 'sql:' || j.author, 'not_its_card', 'report: ' || j.flaw, jsonb_build_object(
               'tool_call_id', j.correlation_id, 'tool_result_card_id', j.card_id, 'inbox_id', j.inbox_id)
    FROM judged j WHERE j.verdict = 'violation'
),
winner AS MATERIALIZED (  -- a result and a timeout of one call: the earlier row wins
    SELECT DISTINCT ON (j.correlation_id) j.inbox_id, j.project_id, j.message_type, j.correlation_id, j.created_at, j.tool_name,
           j.step_id, j.verdict, CASE j.verdict WHEN 'exhausted' THEN j.correlation_id || '-exhausted' ELSE j.card_id END AS card_id
    FROM judged j WHERE j.verdict IN ('good', 'exhausted') ORDER BY j.correlation_id, j.created_at, j.inbox_id
),
placed AS MATERIALIZED (
    SELECT w.*, row_number() OVER (ORDER BY w.created_at, w.inbox_id) AS ordinal, count(*) OVER () AS total FROM winner w
),
stand_in AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    SELECT p.card_id, :project_id, jsonb_build_object('__type__', 'ToolResultContent', 'status', 'failed',
               'after_execution', state.after_execution_of(:project_id, p.tool_name), 'result', NULL, 'error', jsonb_build_object('code', 'resume_retry_exhausted',
                                                           'message', 'the tool reported a result that never appeared')),
           p.correlation_id, jsonb_build_object('type', 'tool.result', 'role', 'tool', 'author_id', 'system', 'function_name', p.tool_name,
               'step_id', p.step_id, 'agent_turn_id', :agent_turn_id::text, 'trace_id', go.trace_id)
    FROM placed p CROSS JOIN go WHERE p.verdict = 'exhausted'
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT go.output_box_id, go.base + p.ordinal, p.card_id FROM go CROSS JOIN placed p
),
applied AS (
    UPDATE state.turn_waiting_tools w SET
        wait_status = CASE p.message_type WHEN 'timeout' THEN 'expired' ELSE 'applied' END, tool_result_card_id = p.card_id,
        received_at = coalesce(w.received_at, p.created_at), applied_at = now(), updated_at = now()
    FROM placed p WHERE w.tool_call_id = p.correlation_id AND w.project_id = p.project_id
),
moved AS (
    UPDATE state.agent_state_head h SET
        output_position = (SELECT go.base FROM go) + n.total, waiting_tool_count = n.left_over, updated_at = now(),
        status = CASE n.left_over WHEN 0 THEN 'running' ELSE 'suspended' END,
        resume_deadline = CASE n.left_over WHEN 0 THEN NULL ELSE h.resume_deadline END
    FROM (SELECT count(*) AS total, (SELECT count(*) FROM calls) - count(*) AS left_over FROM placed) n
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND EXISTS (SELECT FROM go WHERE go.status = 'suspended')
    RETURNING h.status, h.waiting_tool_count, h.resume_deadline, h.updated_at
),
settled AS (
    UPDATE state.agent_inbox i SET
        status = CASE WHEN j.verdict = 'deferred' THEN 'deferred' WHEN j.verdict = 'stale' THEN 'skipped'
                      WHEN j.verdict IN ('violation', 'exhausted') THEN 'error' ELSE 'consumed' END,
        archived_at = CASE j.verdict WHEN 'deferred' THEN NULL ELSE now() END,
        retry_count = i.retry_count + CASE j.verdict WHEN 'deferred' THEN 1 ELSE 0 END,
        next_retry_at = CASE j.verdict WHEN 'deferred' THEN now() + interval '1.5 s' * power(2, i.retry_count) ELSE i.next_retry_at END,
        defer_reason = CASE j.verdict WHEN 'deferred' THEN 'card_not_visible' ELSE i.defer_reason END,
        last_error = CASE j.verdict WHEN 'violation' THEN 'protocol_violation' WHEN 'exhausted' THEN 'resume_retry_exhausted'
                                    WHEN 'stale' THEN 'stale_turn' WHEN 'deferred' THEN 'card_not_visible'
                                    WHEN 'settled' THEN 'already_settled'
                                    ELSE CASE WHEN p.inbox_id IS NULL THEN 'already_settled' END END
    FROM judged j LEFT JOIN placed p ON p.inbox_id = j.inbox_id WHERE i.inbox_id = j.inbox_id
    RETURNING i.inbox_id, i.status, i.last_error, i.correlation_id, j.author, CASE j.verdict WHEN 'violation' THEN j.flaw END AS flaw
)
SELECT 'done' AS result, coalesce(m.status, go.status) AS status, CASE m.status WHEN 'suspended' THEN m.resume_deadline END AS deadline,
       coalesce(m.updated_at, go.updated_at) AS updated_at,
       ARRAY(SELECT c.tool_call_id FROM calls c WHERE c.tool_call_id NOT IN (SELECT p.correlation_id FROM placed p)) AS waiting,
       (SELECT i.context_headers FROM state.agent_inbox i WHERE i.inbox_id = go.active_inbox_id) AS context_headers,
       coalesce((SELECT jsonb_agg(jsonb_build_object(
           'inbox_id', s.inbox_id, 'status', s.status, 'reason', s.last_error, 'call', s.correlation_id, 'author', s.author, 'flaw', s.flaw))
           FROM settled s), '[]') AS rows
FROM go LEFT JOIN moved m ON true
UNION ALL
SELECT 'again', NULL, NULL, NULL, NULL, NULL, NULL FROM head WHERE NOT EXISTS (SELECT FROM go);

-- name: report_call :one
-- Records a report of a call: inbox row, waiting row 'received', edge report/response, and the card of an inline result.
-- verdict: accepted | duplicate (returns the first report's ids, writes nothing) | again | the code of a refusal.
WITH
call AS MATERIALIZED (
    SELECT w.*, e.recursion_depth, e.trace_id, e.channel_id, e.parent_step_id, i.context_headers,
           a.worker_target
    FROM state.turn_waiting_tools w
    LEFT JOIN state.execution_edges e ON md5(e.correlation_id) = md5(w.tool_call_id) AND e.project_id = w.project_id
        AND e.primitive = 'tool_call' AND e.edge_phase = 'request'
    LEFT JOIN state.agent_inbox i ON i.agent_turn_id = w.agent_turn_id AND i.project_id = w.project_id
        AND i.message_type IN {turn_types}
    LEFT JOIN resource.project_agents a ON a.agent_id = w.agent_id AND a.project_id = w.project_id
    WHERE w.tool_call_id = :tool_call_id AND w.project_id = :project_id
),
earlier AS MATERIALIZED (
    SELECT i.inbox_id FROM state.agent_inbox i
    WHERE i.correlation_id = :tool_call_id AND i.project_id = :project_id AND i.message_type = 'tool_result'
),
card AS MATERIALIZED (
    SELECT c.* FROM public.cards c WHERE c.card_id = :tool_result_card_id::text AND c.tenant_id = :project_id
),
plan AS MATERIALIZED (
    SELECT CASE
        WHEN call.tool_call_id IS NULL THEN 'unknown_call'
        WHEN call.agent_turn_id IS DISTINCT FROM coalesce(:claimed_turn_id::text, call.agent_turn_id)
          OR call.agent_id IS DISTINCT FROM coalesce(:claimed_agent_id::text, call.agent_id)
          OR call.recursion_depth IS DISTINCT FROM coalesce(:claimed_depth::int, call.recursion_depth) THEN 'not_your_call'
        WHEN earlier.inbox_id IS NOT NULL THEN 'duplicate'
        WHEN :content::jsonb IS NOT NULL THEN 'accepted'
        WHEN card.card_id IS NULL THEN 'unknown_card'
        WHEN card.metadata ->> 'type' IS DISTINCT FROM 'tool.result' OR card.tool_call_id IS DISTINCT FROM call.tool_call_id
          OR NOT state.is_service(card.metadata ->> 'author_id') THEN 'not_its_card'
        ELSE 'accepted' END AS verdict
    FROM (SELECT) AS always LEFT JOIN call ON true LEFT JOIN earlier ON true LEFT JOIN card ON true
),
held AS MATERIALIZED (  -- before the inbox row and the edge, which a timeout of this call writes too
    SELECT w.tool_call_id FROM plan JOIN state.turn_waiting_tools w ON plan.verdict = 'accepted'
    WHERE w.tool_call_id = :tool_call_id AND w.project_id = :project_id FOR NO KEY UPDATE OF w
),
inbox AS (
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                                   turn_epoch, context_headers, payload, status, next_retry_at, created_at)
    SELECT :inbox_id, :project_id, call.agent_id, coalesce(call.channel_id, 'public'), 'tool_result', 'report', :tool_call_id,
           call.agent_turn_id, call.turn_epoch,
           :context_headers::jsonb || jsonb_build_object('CG-Recursion-Depth', coalesce(call.recursion_depth, 0)::text),
           jsonb_build_object('status', :status::text, 'after_execution', :after_execution::text, 'tool_result_card_id',
                              coalesce(:tool_result_card_id::text, call.tool_call_id || '-result')),
           'pending', now(), clock_timestamp()
    FROM held CROSS JOIN call
    ON CONFLICT DO NOTHING
    RETURNING inbox_id
),
received AS (  -- only by a row of ours: a call that says so never expires
    UPDATE state.turn_waiting_tools w SET wait_status = 'received', received_at = now(), updated_at = now()
    FROM inbox WHERE w.tool_call_id = :tool_call_id AND w.project_id = :project_id AND w.wait_status = 'waiting'
),
made AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    SELECT call.tool_call_id || '-result', :project_id, jsonb_build_object(
               'after_execution', state.after_execution_of(:project_id, call.tool_name)) || :content::jsonb, call.tool_call_id, jsonb_build_object(
               'type', 'tool.result', 'role', 'tool', 'author_id', 'tool.' || call.tool_name, 'function_name', call.tool_name,
               'step_id', call.step_id, 'agent_turn_id', call.agent_turn_id, 'trace_id', call.trace_id)
    FROM inbox CROSS JOIN call WHERE :content::jsonb IS NOT NULL
),
edge AS (
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    SELECT 'report-' || call.tool_call_id, :project_id, call.channel_id, 'report', 'response', call.agent_id, call.agent_turn_id,
           :tool_call_id, call.recursion_depth, call.trace_id, call.step_id, jsonb_build_object('status', :status::text)
    FROM inbox CROSS JOIN call
    ON CONFLICT DO NOTHING
)
SELECT CASE WHEN plan.verdict <> 'accepted' THEN plan.verdict WHEN inbox.inbox_id IS NULL THEN 'again' ELSE 'accepted' END AS verdict,
       coalesce(inbox.inbox_id, earlier.inbox_id) AS inbox_id, call.agent_id, call.agent_turn_id, call.turn_epoch, call.wait_status,
       coalesce(call.channel_id, 'public') AS channel_id, call.worker_target, call.context_headers
FROM plan LEFT JOIN call ON true LEFT JOIN inbox ON true LEFT JOIN earlier ON true;

-- name: get_card :opt
-- One card of a project.
SELECT c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata FROM public.cards c
WHERE c.card_id = :card_id AND c.tenant_id = :project_id AND c.deleted_at IS NULL;

-- name: box_cards :many
-- The cards of a box in order; one row of nulls for an empty box, no row for an unknown one.
SELECT c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata
FROM public.boxes b
LEFT JOIN public.box_cards p ON p.box_id = b.box_id
LEFT JOIN public.cards c ON c.card_id = p.card_id
WHERE b.box_id = :box_id::uuid AND b.tenant_id = :project_id
ORDER BY p.position;

-- name: finish_turn :opt
-- The end of a turn, by its own step or by force: cards (the deliverable among them), canceled results for calls nobody
-- answered, step and outcome; the head is leased to the next free turn of its queue, or idle. The head never idles with a
-- queue: if an enqueue came between our snapshot and our lock and no next turn is in sight, nothing changes: 'again'. So too
-- if a step was committed meanwhile, whose calls we would not see.
-- result: done | again | already (the outcome is there, by this step or, without a step, by anybody). No row: stale.
WITH
head AS MATERIALIZED (
    SELECT h.*, h.xmin AS version FROM state.agent_state_head h
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status = ANY (:from_statuses::text[])
      AND (:step_id::text IS NULL OR h.step_count = :step::int - 1)
    FOR NO KEY UPDATE
),
next AS MATERIALIZED (
    SELECT q.* FROM head CROSS JOIN LATERAL (
        SELECT q.* FROM state.queued_turns q
        WHERE q.agent_id = :agent_id AND q.project_id = :project_id
          AND NOT EXISTS (SELECT FROM state.agent_state_head busy
                          WHERE busy.output_box_id = q.output_box_id AND busy.output_box_id <> head.output_box_id)
        ORDER BY q.created_at LIMIT 1 FOR NO KEY UPDATE OF q) q
),
go AS MATERIALIZED (
    SELECT head.*, greatest(head.output_position, (
               SELECT max(b.position) FROM public.box_cards b WHERE b.box_id = head.output_box_id)) AS base
    FROM head JOIN state.agent_state_head seen ON seen.agent_id = head.agent_id AND seen.project_id = head.project_id
    WHERE seen.xmin = head.version OR (EXISTS (SELECT FROM next) AND seen.step_count = head.step_count)
),
dropped AS (
    UPDATE state.turn_waiting_tools w SET wait_status = 'dropped', updated_at = now()
    FROM go WHERE w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id AND w.wait_status IN ('waiting', 'received')
    RETURNING w.tool_call_id, w.tool_name, w.step_id, w.created_at
),
new_cards AS MATERIALIZED (  -- the canceled results before the cards of the end, whose last is the deliverable
    SELECT row_number() OVER (ORDER BY x.part, x.place, x.card_id) AS ordinal, x.*
    FROM (
        SELECT 1 AS part, 0::bigint AS place, d.tool_call_id || '-canceled' AS card_id,
               jsonb_build_object('__type__', 'ToolResultContent', 'status', 'canceled', 'after_execution', 'suspend', 'result', NULL,
                   'error', jsonb_build_object('code', 'canceled', 'message', 'the turn ended before this call was answered')) AS content,
               NULL::jsonb AS tool_calls, d.tool_call_id,
               jsonb_build_object('type', 'tool.result', 'role', 'tool', 'author_id', 'system', 'function_name', d.tool_name,
                   'step_id', d.step_id, 'agent_turn_id', :agent_turn_id::text, 'trace_id', go.trace_id) AS metadata
        FROM dropped d CROSS JOIN go
        UNION ALL
        SELECT 2, c.place, c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata FROM go
        CROSS JOIN unnest(:card_ids::text[], :card_contents::jsonb[], :card_tool_calls::jsonb[], :card_tool_call_ids::text[],
                          :card_metadatas::jsonb[]) WITH ORDINALITY c (card_id, content, tool_calls, tool_call_id, metadata, place)
    ) x
),
cards AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_calls, tool_call_id, metadata)
    SELECT c.card_id, :project_id, c.content, c.tool_calls, c.tool_call_id, c.metadata FROM new_cards c
    WHERE c.card_id <> ALL (:kept_ids::text[])
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT go.output_box_id, go.base + c.ordinal, c.card_id FROM go CROSS JOIN new_cards c
),
step AS (
    INSERT INTO state.agent_steps (project_id, agent_id, step_id, agent_turn_id, channel_id, parent_step_id, trace_id, status,
                                   profile_box_id, context_box_id, output_box_id, tool_call_ids, error, metadata, started_at, ended_at)
    SELECT :project_id, :agent_id, :step_id::text, :agent_turn_id, go.active_channel_id, go.parent_step_id, go.trace_id,
           :step_status::text, go.profile_box_id, go.context_box_id, go.output_box_id, :tool_call_ids::jsonb, :error_code::text,
           :step_metadata::jsonb, :step_started_at::timestamptz, clock_timestamp()
    FROM go WHERE :step_id::text IS NOT NULL
),
outcome AS (
    INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status,
                                     deliverable_card_id, tool_result_card_id, output_box_id, error_code, error, stats, trace_id, started_at)
    SELECT :agent_turn_id, :project_id, :agent_id, go.active_channel_id, :turn_epoch, go.active_inbox_id, :status::text,
           :deliverable_card_id::text, :tool_result_card_id::text, go.output_box_id, :error_code::text, :error::text,
           jsonb_build_object('steps', go.step_count) || :stats::jsonb || state.turn_timing(i.created_at, go.started_at),
           go.trace_id, go.started_at
    FROM go LEFT JOIN state.agent_inbox i ON i.inbox_id = go.active_inbox_id
    RETURNING *
),
settled AS (  -- the turn's own row, if it was never begun
    UPDATE state.agent_inbox i SET status = 'skipped', archived_at = now(), last_error = :error_code::text
    FROM go WHERE i.inbox_id = go.active_inbox_id AND i.archived_at IS NULL
),
stopped AS (  -- and what asked for its end
    UPDATE state.agent_inbox i SET
        status = CASE :error_code::text WHEN 'stopped' THEN 'consumed' ELSE 'skipped' END, archived_at = now(),
        last_error = CASE :error_code::text WHEN 'stopped' THEN NULL ELSE 'already_final' END
    FROM go WHERE i.correlation_id = :agent_turn_id AND i.project_id = :project_id AND i.message_type = 'stop' AND i.archived_at IS NULL
),
moved AS (
    UPDATE state.agent_inbox i SET status = 'pending', next_retry_at = now(), turn_epoch = go.turn_epoch + 1
    FROM go CROSS JOIN next WHERE i.inbox_id = next.inbox_id
),
freed AS (
    UPDATE state.agent_state_head h SET
        status = CASE WHEN n.inbox_id IS NULL THEN 'idle' ELSE 'dispatched' END,
        turn_epoch = h.turn_epoch + CASE WHEN n.inbox_id IS NULL THEN :idle_bump::int ELSE 1 END, updated_at = now(),
        active_agent_turn_id = n.agent_turn_id, active_inbox_id = n.inbox_id, active_channel_id = n.channel_id,
        active_recursion_depth = coalesce(n.recursion_depth, 0), parent_step_id = n.parent_step_id, trace_id = n.trace_id,
        profile_box_id = n.profile_box_id, context_box_id = n.context_box_id, output_box_id = n.output_box_id,
        waiting_tool_count = 0, resume_deadline = NULL, expecting_correlation_id = NULL, restart_count = 0,
        output_position = 0, step_count = 0, step_attempt = 0, model_failures = 0, started_at = NULL
    FROM go LEFT JOIN next n ON true WHERE h.agent_id = :agent_id AND h.project_id = :project_id
    RETURNING h.status, h.turn_epoch, h.updated_at, n.inbox_id, n.agent_turn_id, n.channel_id, n.context_headers
),
pointed AS (
    INSERT INTO state.agent_state_pointers AS p (project_id, agent_id, last_output_box_id)
    SELECT :project_id, :agent_id, go.output_box_id FROM go
    ON CONFLICT (agent_id, project_id) DO UPDATE SET last_output_box_id = EXCLUDED.last_output_box_id, updated_at = now()
)
SELECT 'done' AS result, o.status, o.deliverable_card_id, o.tool_result_card_id, o.output_box_id::text AS output_box_id, o.error_code,
       o.error, o.stats, o.ended_at, NULL::jsonb AS step_metadata, f.status AS head_status, f.turn_epoch AS head_epoch, f.updated_at,
       f.inbox_id AS next_inbox_id, f.agent_turn_id AS next_turn_id, f.channel_id AS next_channel_id,
       f.context_headers AS next_context_headers, i.context_headers, i.payload -> 'ui_action' AS ui_action,
       (SELECT a.worker_target FROM resource.project_agents a WHERE a.agent_id = :agent_id AND a.project_id = :project_id) AS worker_target
FROM outcome o CROSS JOIN freed f LEFT JOIN state.agent_inbox i ON i.inbox_id = o.inbox_id
UNION ALL
SELECT 'again', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM head WHERE NOT EXISTS (SELECT FROM go)
UNION ALL
SELECT 'already', o.status, o.deliverable_card_id, o.tool_result_card_id, o.output_box_id::text, o.error_code, o.error, o.stats,
       o.ended_at, s.metadata, h.status, h.turn_epoch, h.updated_at,
       CASE h.status WHEN 'dispatched' THEN h.active_inbox_id END, CASE h.status WHEN 'dispatched' THEN h.active_agent_turn_id END,
       CASE h.status WHEN 'dispatched' THEN h.active_channel_id END,
       (SELECT n.context_headers FROM state.agent_inbox n WHERE h.status = 'dispatched' AND n.inbox_id = h.active_inbox_id),
       i.context_headers, i.payload -> 'ui_action',
       (SELECT a.worker_target FROM resource.project_agents a WHERE a.agent_id = :agent_id AND a.project_id = :project_id)
FROM state.turn_outcomes o JOIN state.agent_state_head h ON h.agent_id = o.agent_id AND h.project_id = o.project_id
LEFT JOIN state.agent_steps s ON s.step_id = :step_id::text AND s.project_id = :project_id
LEFT JOIN state.agent_inbox i ON i.inbox_id = o.inbox_id
WHERE o.agent_turn_id = :agent_turn_id AND o.project_id = :project_id AND (:step_id::text IS NULL OR s.step_id IS NOT NULL);

-- name: dispatch_next :many
-- Leases each of these agents that is idle to its oldest turn whose output box is free.
WITH
head AS MATERIALIZED (
    SELECT h.project_id, h.agent_id FROM unnest(:project_ids::text[], :agent_ids::text[]) a (project_id, agent_id)
    JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = a.project_id
    WHERE h.status = 'idle' ORDER BY h.project_id, h.agent_id FOR NO KEY UPDATE OF h
),
next AS MATERIALIZED (
    SELECT q.* FROM head CROSS JOIN LATERAL (
        SELECT q.* FROM state.queued_turns q
        WHERE q.agent_id = head.agent_id AND q.project_id = head.project_id
          AND NOT EXISTS (SELECT FROM state.agent_state_head busy WHERE busy.output_box_id = q.output_box_id)
        ORDER BY q.created_at LIMIT 1 FOR NO KEY UPDATE OF q) q
),
picked AS (  -- one agent per box: with two the statement would always fail
    SELECT DISTINCT ON (next.output_box_id) next.* FROM next ORDER BY next.output_box_id, next.created_at
),
leased AS (
    UPDATE state.agent_state_head h SET
        status = 'dispatched', turn_epoch = h.turn_epoch + 1, updated_at = now(),
        active_agent_turn_id = n.agent_turn_id, active_inbox_id = n.inbox_id, active_channel_id = n.channel_id,
        active_recursion_depth = n.recursion_depth, parent_step_id = n.parent_step_id, trace_id = n.trace_id,
        profile_box_id = n.profile_box_id, context_box_id = n.context_box_id, output_box_id = n.output_box_id,
        waiting_tool_count = 0, resume_deadline = NULL, expecting_correlation_id = NULL, restart_count = 0,
        output_position = 0, step_count = 0, step_attempt = 0, model_failures = 0, started_at = NULL
    FROM picked n WHERE h.agent_id = n.agent_id AND h.project_id = n.project_id AND h.status = 'idle'
    RETURNING h.project_id, h.agent_id, h.active_inbox_id, h.active_agent_turn_id, h.active_channel_id, h.turn_epoch
),
moved AS (
    UPDATE state.agent_inbox i SET status = 'pending', next_retry_at = now(), turn_epoch = l.turn_epoch
    FROM leased l WHERE i.inbox_id = l.active_inbox_id
    RETURNING i.inbox_id, i.context_headers
)
SELECT l.project_id, l.agent_id, l.active_inbox_id AS inbox_id, l.active_agent_turn_id AS agent_turn_id,
       l.active_channel_id AS channel_id, l.turn_epoch, a.worker_target, m.context_headers
FROM leased l JOIN moved m ON m.inbox_id = l.active_inbox_id
JOIN resource.project_agents a ON a.agent_id = l.agent_id AND a.project_id = l.project_id;

-- name: recall_step :one
-- The recorded state of a turn whose gate is closed: the step (the latest for step 0), the outcome, and the head's state.
SELECT s.metadata AS step_metadata, s.number AS step, o.status, o.deliverable_card_id, o.tool_result_card_id,
       o.output_box_id::text AS output_box_id, o.error_code, o.error, o.stats, o.ended_at, h.status AS head_status,
       h.turn_epoch AS head_epoch, h.updated_at,
       coalesce(h.active_agent_turn_id = :agent_turn_id AND h.turn_epoch = :turn_epoch, false) AS gate, h.resume_deadline,
       CASE h.status WHEN 'dispatched' THEN h.active_inbox_id END AS next_inbox_id,
       CASE h.status WHEN 'dispatched' THEN h.active_agent_turn_id END AS next_turn_id,
       CASE h.status WHEN 'dispatched' THEN h.active_channel_id END AS next_channel_id, a.worker_target,
       ARRAY(SELECT w.tool_call_id FROM state.turn_waiting_tools w WHERE w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id
             AND w.wait_status IN ('waiting', 'received') ORDER BY w.created_at, w.tool_call_id) AS waiting,
       i.context_headers, i.payload -> 'ui_action' AS ui_action, n.context_headers AS next_context_headers
FROM (SELECT) AS always
LEFT JOIN state.agent_state_head h ON h.agent_id = :agent_id AND h.project_id = :project_id
LEFT JOIN resource.project_agents a ON a.agent_id = :agent_id AND a.project_id = :project_id
LEFT JOIN LATERAL (
    SELECT t.metadata, state.as_count(substring(t.step_id FROM '-s([0-9]+)$')) AS number FROM state.agent_steps t
    WHERE t.agent_turn_id = :agent_turn_id AND t.project_id = :project_id
      AND (:step::int = 0 OR t.step_id = :agent_turn_id || '-s' || :step::int)
    ORDER BY 2 DESC LIMIT 1) s ON true
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = :agent_turn_id AND o.project_id = :project_id
LEFT JOIN state.agent_inbox i ON i.inbox_id = :inbox_id AND i.project_id = :project_id
LEFT JOIN state.agent_inbox n ON h.status = 'dispatched' AND n.inbox_id = h.active_inbox_id;

-- name: claim_inbox :many
-- Claims due rows of these agents, if their worker target is served here: pending | deferred -> processing, or settles them at
-- once if no workflow is needed. verdict: start | signal | consumed (a call already settled) | skipped (another or an old
-- turn) | deferred (the turn runs while its call still waits) | error (protocol violation).
WITH
due AS MATERIALIZED (
    SELECT i.inbox_id, a.worker_target FROM unnest(:project_ids::text[], :agent_ids::text[]) w (project_id, agent_id)
    JOIN resource.project_agents a ON a.agent_id = w.agent_id AND a.project_id = w.project_id
    CROSS JOIN LATERAL (
        SELECT i.inbox_id FROM state.agent_inbox i
        WHERE i.agent_id = a.agent_id AND i.project_id = a.project_id AND i.archived_at IS NULL
          AND i.next_retry_at <= now() AND i.status IN ('pending', 'deferred')
        ORDER BY i.next_retry_at, i.created_at LIMIT :row_limit::int FOR NO KEY UPDATE SKIP LOCKED) i
    WHERE a.worker_target = ANY (:worker_targets::text[])
),
judged AS MATERIALIZED (
    SELECT i.inbox_id, due.worker_target, h.profile_box_id, h.context_box_id, h.output_box_id, h.trace_id, h.active_inbox_id,
           coalesce(CASE  -- what needs no workflow
               WHEN i.agent_turn_id IS NULL OR i.turn_epoch < 1 OR i.correlation_id IS NULL
                 OR i.message_type NOT IN {message_types} THEN 'error'
               WHEN i.message_type IN {report_types} AND w.agent_id IS DISTINCT FROM i.agent_id THEN 'error'
               WHEN w.wait_status IN ('applied', 'expired', 'dropped') THEN 'consumed'
               WHEN h.active_agent_turn_id = i.agent_turn_id AND h.turn_epoch = i.turn_epoch THEN NULL
               WHEN EXISTS (SELECT FROM state.agent_inbox t WHERE t.agent_turn_id = i.agent_turn_id AND t.project_id = i.project_id
                            AND t.message_type IN {turn_types} AND t.agent_id <> i.agent_id) THEN 'error'
               ELSE 'skipped'
           END, CASE
               WHEN i.message_type IN {turn_types} THEN 'start'
               WHEN i.message_type IN {report_types} AND h.status <> 'suspended' THEN 'deferred'
               ELSE 'signal'
           END) AS verdict
    FROM due JOIN state.agent_inbox i ON i.inbox_id = due.inbox_id
    LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
    LEFT JOIN LATERAL (
        SELECT w.agent_id, w.wait_status FROM state.turn_waiting_tools w
        WHERE i.message_type IN {report_types} AND w.tool_call_id = i.correlation_id AND w.project_id = i.project_id) w ON true
),
marked AS (
    UPDATE state.agent_inbox i SET
        status = CASE WHEN j.verdict IN ('start', 'signal') THEN 'processing' ELSE j.verdict END, processed_at = now(),
        next_retry_at = CASE j.verdict WHEN 'deferred' THEN now() + interval '1 s' ELSE i.next_retry_at END,
        defer_reason = CASE j.verdict WHEN 'deferred' THEN 'turn_running' ELSE i.defer_reason END,
        archived_at = CASE WHEN j.verdict IN ('consumed', 'skipped', 'error') THEN now() END,
        last_error = CASE j.verdict WHEN 'consumed' THEN 'already_settled' WHEN 'skipped' THEN 'stale_turn'
                                    WHEN 'error' THEN 'protocol_violation' ELSE i.last_error END
    FROM judged j WHERE i.inbox_id = j.inbox_id
    RETURNING i.*, j.verdict, j.worker_target, j.profile_box_id, j.context_box_id, j.output_box_id, j.trace_id, j.active_inbox_id
)
SELECT m.verdict, m.inbox_id, m.project_id, m.agent_id, m.channel_id, m.message_type, m.correlation_id, m.agent_turn_id,
       m.turn_epoch, m.worker_target, m.profile_box_id::text AS profile_box_id, m.context_box_id::text AS context_box_id,
       m.output_box_id::text AS output_box_id, m.trace_id, m.active_inbox_id, m.last_error, m.context_headers
FROM marked m ORDER BY m.next_retry_at, m.created_at;
