-- A ledger of ended turns, as the kernel leaves them: every fourth called a tool, every fifth agent goes on in a box for ten turns.
-- Run in the order of these queries, in one transaction that passes triggers by (`session_replication_role = replica`).

-- name: make_ids :exec
-- An id of this moment; PostgreSQL 16 draws none.
CREATE OR REPLACE FUNCTION pg_temp.uuid_at(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE
RETURN overlay(overlay(
    lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || substr(replace(gen_random_uuid()::text, '-', ''), 13)
    PLACING '7' FROM 13) PLACING '8' FROM 17)::uuid;

-- name: make_plan :exec
-- The turns to write.
CREATE TEMP TABLE planned (n int, agent_id text, turn_epoch int, project_id text, at timestamptz, turn text, inbox text, context_box uuid,
                           output_box uuid, trace text, call text) ON COMMIT DROP;

-- name: plan_turns :exec
-- Their ids; an agent's follow each other. The newest is a minute old, the oldest :days days.
INSERT INTO planned
SELECT n, 'a' || agent, turn_epoch, 'p' || agent % 4, at, pg_temp.uuid_at(at)::text, pg_temp.uuid_at(at)::text, pg_temp.uuid_at(at),
       CASE WHEN agent % 5 = 0 THEN first_value(box) OVER (PARTITION BY agent, (turn_epoch - 1) / 10 ORDER BY turn_epoch) ELSE box END,
       md5('trace' || n), CASE WHEN turn_epoch % 4 = 0 THEN 'call_' || left(md5('call' || n), 26) END
FROM (
    SELECT n, n % agents AS agent, n / agents + 1 AS turn_epoch, at, pg_temp.uuid_at(at) AS box
    FROM (SELECT :turns::int AS turns, greatest(10, :turns::int / 1000) AS agents) size
    CROSS JOIN generate_series(0, size.turns - 1) n
    CROSS JOIN LATERAL (
        SELECT now() - interval '1 minute' - :days::int * interval '1 day' * (1 - (n + 1) / size.turns::float8) AS at) moment
) drawn;

-- name: fill_profiles :exec
-- A profile a project.
INSERT INTO resource.profiles (project_id, profile_box_id, name)
SELECT 'p' || p, md5('profile' || p)::uuid, 'helper' FROM generate_series(0, 3) p;

-- name: fill_agents :exec
-- The roster.
INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id)
SELECT DISTINCT project_id, agent_id, md5('profile' || substr(project_id, 2))::uuid FROM planned;

-- name: fill_heads :exec
-- Idle heads, at the epoch of their last turn.
INSERT INTO state.agent_state_head (project_id, agent_id, turn_epoch, queue_seq, updated_at)
SELECT project_id, agent_id, max(turn_epoch), max(turn_epoch), max(at) FROM planned GROUP BY 1, 2;

-- name: fill_pointers :exec
-- The box of each agent's last turn.
INSERT INTO state.agent_state_pointers (project_id, agent_id, last_output_box_id, updated_at)
SELECT DISTINCT ON (project_id, agent_id) project_id, agent_id, output_box, at FROM planned ORDER BY project_id, agent_id, turn_epoch DESC;

-- name: fill_inbox :exec
-- The row of each turn, and the report of each call.
INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                               turn_epoch, context_headers, payload, status, next_retry_at, processed_at, archived_at, created_at,
                               request_digest)
SELECT x.* FROM planned p CROSS JOIN LATERAL (
    SELECT jsonb_build_object('CG-Recursion-Depth', '0', 'traceparent', '00-' || trace || '-' || left(trace, 16) || '-01') AS headers) h
CROSS JOIN LATERAL (
    SELECT inbox, project_id, agent_id, 'public', 'turn', 'call', turn AS correlation_id, turn, turn_epoch, headers, jsonb_build_object(
               'profile_box_id', md5('profile' || substr(project_id, 2))::uuid, 'context_box_id', context_box,
               'output_box_id', output_box, 'runtime_config', '{}'::jsonb),
           'consumed', at, at, at, at, md5(turn)
    UNION ALL
    SELECT pg_temp.uuid_at(at)::text, project_id, agent_id, 'public', 'tool_result', 'report', call, turn, turn_epoch, headers,
           jsonb_build_object('status', 'success', 'after_execution', NULL, 'tool_result_card_id', call || '-result'),
           'consumed', at, at, at, at, NULL
    WHERE call IS NOT NULL) x;

-- name: fill_waiting :exec
-- The call of a turn's first step.
INSERT INTO state.turn_waiting_tools
SELECT project_id, agent_id, turn, turn_epoch, turn || '-s1', call, 'search', 'applied', call || '-result', at, at, at, at
FROM planned WHERE call IS NOT NULL;

-- name: fill_steps :exec
-- One step a turn, and a second one after a call.
INSERT INTO state.agent_steps (project_id, agent_id, step_id, agent_turn_id, channel_id, trace_id, status, profile_box_id,
                               context_box_id, output_box_id, tool_call_ids, metadata, started_at, ended_at)
SELECT project_id, agent_id, turn || '-s' || s, turn, 'public', trace, 'completed', md5('profile' || substr(project_id, 2))::uuid,
       context_box, output_box, CASE WHEN s = 1 AND call IS NOT NULL THEN jsonb_build_array(call) ELSE '[]' END,
       jsonb_build_object('next', CASE WHEN s = 1 AND call IS NOT NULL THEN 'suspend' ELSE 'end' END, 'attempts', jsonb_build_array(jsonb_build_object('attempt', 1, 'model', 'scripted/echo',
           'usage', jsonb_build_object('prompt_tokens', 40, 'completion_tokens', 12), 'duration_ms', 250)),
           'timing', jsonb_build_object('step_ms', 260), 'turn_config', jsonb_build_object('max_steps', 16, 'profile_name', 'helper')),
       at, at
FROM planned CROSS JOIN LATERAL generate_series(1, CASE WHEN call IS NULL THEN 1 ELSE 2 END) s;

-- name: fill_edges :exec
-- Who asked: the enqueue of each turn, the request and the report of each call.
INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id, source_agent_turn_id,
                                   source_step_id, target_agent_id, target_agent_turn_id, correlation_id, enqueue_mode,
                                   recursion_depth, trace_id, created_at)
SELECT x.* FROM planned CROSS JOIN LATERAL (
    SELECT 'enqueue-' || turn, project_id, 'public', 'enqueue', 'request', NULL::text, NULL::text, NULL::text, agent_id, turn,
           turn AS correlation_id, 'call', 0, trace, at
    UNION ALL
    SELECT 'tool-call-' || call, project_id, 'public', 'tool_call', 'request', agent_id, turn, turn || '-s1', agent_id, turn, call, NULL, 0,
           trace, at WHERE call IS NOT NULL
    UNION ALL
    SELECT 'report-' || call, project_id, 'public', 'report', 'response', NULL, NULL, NULL, agent_id, turn, call, NULL, 0, trace, at
    WHERE call IS NOT NULL) x;

-- name: fill_outcomes :exec
-- How they ended.
INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status, deliverable_card_id,
                                 output_box_id, stats, trace_id, started_at, ended_at, announced_at)
SELECT turn, project_id, agent_id, 'public', turn_epoch, inbox, 'success', turn || '-deliverable', output_box,
       '{"steps": 1, "e2e_ms": 30, "queue_delay_ms": 10}', trace,
       at, at, at + interval '10 ms' FROM planned;

-- name: fill_boxes :exec
-- The boxes of profiles and turns.
INSERT INTO public.boxes (box_id, tenant_id, created_at, updated_at)
SELECT context_box, project_id, at, at FROM planned
UNION ALL
SELECT output_box, project_id, min(at), min(at) FROM planned GROUP BY 1, 2
UNION ALL
SELECT md5('profile' || p)::uuid, 'p' || p, now() - interval '1 year', now() FROM generate_series(0, 3) p;

-- name: plan_cards :exec
-- The cards of each turn in their order, `place` 0 in the context box.
CREATE TEMP TABLE planned_cards ON COMMIT DROP AS
SELECT n, agent_id, turn_epoch, project_id, at, turn, trace, x.*, CASE place WHEN 0 THEN context_box ELSE output_box END AS box_id
FROM planned CROSS JOIN LATERAL (
    VALUES (0, turn || '-instruction', 'task.instruction', 'user', 'user.test', NULL, NULL),
           (1, turn || '-s1-prompt', 'sys.rendered_prompt', 'system', 'system', 1, NULL),
           (2, turn || '-s1-tools', 'sys.tools', 'system', 'system', 1, NULL),
           (3, turn || '-s1-thought', 'agent.thought', 'assistant', 'agent.' || agent_id, 1, NULL),
           (4, call || '-call', 'tool.call', 'assistant', 'agent.' || agent_id, 1, call),
           (5, call || '-result', 'tool.result', 'tool', 'tool.search', 1, call),
           (6, CASE WHEN call IS NOT NULL THEN turn || '-s2-thought' END, 'agent.thought', 'assistant', 'agent.' || agent_id, 2, NULL),
           (7, turn || '-deliverable', 'task.deliverable', 'assistant', 'agent.' || agent_id, CASE WHEN call IS NULL THEN 1 ELSE 2 END, NULL)
) x (place, card_id, type, role, author_id, step, call)
WHERE x.card_id IS NOT NULL;

-- name: fill_cards :exec
-- The cards, with some 200 bytes of text each.
INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata, created_at)
SELECT card_id, project_id, jsonb_build_object('__type__', 'TextContent', 'text', repeat(md5(card_id), 6)), call, jsonb_strip_nulls(
           jsonb_build_object('type', type, 'role', role, 'author_id', author_id, 'agent_turn_id', turn, 'trace_id', trace,
                              'step_id', turn || '-s' || step)), at
FROM planned_cards
UNION ALL
SELECT 'profile-' || p, 'p' || p, '{"__type__": "JsonContent", "data": {}}', NULL, '{"type": "sys.profile", "role": "system"}', now()
FROM generate_series(0, 3) p;

-- name: fill_box_cards :exec
-- Each card in its place.
INSERT INTO public.box_cards (box_id, position, card_id)
SELECT box_id, row_number() OVER (PARTITION BY box_id ORDER BY turn_epoch, place), card_id FROM planned_cards
UNION ALL
SELECT md5('profile' || p)::uuid, 1, 'profile-' || p FROM generate_series(0, 3) p;
