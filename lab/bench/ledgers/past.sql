-- A ledger's past: turns that ended long ago, in conversations. Run in the order of these queries: those from plan_turns to forget_plan
-- for each part of the rows, those named fill_ in one transaction. Ids sort by time, as real ones do, and before all real ones.

-- name: pass_triggers :exec
-- What triggers do for a turn is in the rows already; no constraint is skipped. An id begins with the moment at which it was drawn,
-- as a real one does: the planner's statistics of old and new ids have to be those of a real ledger.
ALTER TABLE state.agent_inbox DISABLE TRIGGER USER;
ALTER TABLE state.turn_outcomes DISABLE TRIGGER USER;
ALTER TABLE state.agent_steps DISABLE TRIGGER USER;
ALTER TABLE public.cards DISABLE TRIGGER USER;
ALTER TABLE public.box_cards DISABLE TRIGGER USER;
SET synchronous_commit = off;
CREATE TEMP TABLE planned (n bigint, agent_id text, conversation_id text, at timestamptz, turn text, inbox text, context_box uuid,
                           output_box uuid, profile_box uuid, trace text, is_last boolean);
CREATE FUNCTION pg_temp.id_of(at timestamptz, what text, n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT regexp_replace(lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0'), '(.{4})$', '-\1')
        || '-7000-' || what || '-' || lpad(to_hex(n), 12, '0')
$$;

-- name: plan_turns :exec
-- The turns :first to :last - 1 of :rows: each the next one of a conversation in turn, which is one of an agent in turn.
INSERT INTO planned
SELECT turns.n, a.agent_id, 'c-' || talk.n / cardinality(:agents::text[]), moment.at, pg_temp.id_of(moment.at, '8000', turns.n),
       pg_temp.id_of(moment.at, 'a000', turns.n), pg_temp.id_of(moment.at, '9000', turns.n)::uuid, pg_temp.id_of(moment.began_at, 'b000', talk.n)::uuid,
       p.profile_box_id::uuid, lpad(to_hex(turns.n), 32, '0'), turns.n >= :rows::bigint - :conversations::bigint
FROM generate_series(:first::bigint, :last::bigint - 1) turns (n)
CROSS JOIN LATERAL (SELECT turns.n % :conversations::bigint AS n) talk
JOIN unnest(:agents::text[]) WITH ORDINALITY a (agent_id, place) ON a.place = talk.n % cardinality(:agents::text[]) + 1
CROSS JOIN LATERAL (
    SELECT :until::timestamptz - interval '90 days' * (1 - turns.n / :rows::float8) AS at,
           :until::timestamptz - interval '90 days' * (1 - talk.n / :rows::float8) AS began_at) moment
CROSS JOIN (SELECT profile_box_id FROM resource.profiles WHERE project_id = :project_id LIMIT 1) p;

-- name: fill_inbox :exec
-- The row of each turn.
INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id, agent_turn_id,
                               turn_epoch, context_headers, payload, status, next_retry_at, processed_at, archived_at, created_at,
                               request_digest)
SELECT inbox, :project_id, agent_id, 'public', 'turn', 'call', turn, turn, n + 1,
       jsonb_build_object('CG-Recursion-Depth', '0', 'traceparent', '00-' || trace || '-' || right(trace, 16) || '-01'),
       jsonb_build_object('profile_box_id', profile_box, 'context_box_id', context_box, 'output_box_id', output_box,
                          'runtime_config', '{"remember": true}'::jsonb, 'conversation_id', conversation_id),
       'consumed', at, at, at, at, replace(turn || turn, '-', '')
FROM planned;

-- name: fill_outcomes :exec
-- How each ended.
INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status, deliverable_card_id,
                                 output_box_id, stats, trace_id, started_at, ended_at, announced_at)
SELECT turn, :project_id, agent_id, 'public', n + 1, inbox, 'success', turn || '-deliverable',
       output_box, '{"steps": 1, "e2e_ms": 30, "queue_delay_ms": 10}', trace, at, at, at FROM planned;

-- name: fill_steps :exec
-- The step of the last turn of each conversation.
INSERT INTO state.agent_steps (project_id, agent_id, step_id, agent_turn_id, channel_id, trace_id, status, profile_box_id,
                               context_box_id, output_box_id, tool_call_ids, metadata, started_at, ended_at)
SELECT :project_id, agent_id, turn || '-s1', turn, 'public', trace, 'completed', profile_box, context_box, output_box, '[]',
       '{"next": "end", "attempts": [{"attempt": 1, "model": "scripted/instant", "duration_ms": 1}], "timing": {"step_ms": 5}}', at, at
FROM planned WHERE is_last;

-- name: fill_edges :exec
-- Who asked for it.
INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, target_agent_id, target_agent_turn_id,
                                   correlation_id, enqueue_mode, recursion_depth, trace_id, created_at)
SELECT 'enqueue-' || turn, :project_id, 'public', 'enqueue', 'request', agent_id, turn, turn, 'call', 0, trace, at FROM planned WHERE is_last;

-- name: fill_boxes :exec
-- Its context, and the box of its conversation.
INSERT INTO public.boxes (box_id, tenant_id, created_at, updated_at)
SELECT unnest(ARRAY[context_box, output_box]), :project_id, at, at FROM planned WHERE is_last;

-- name: fill_cards :exec
-- What was said in it.
INSERT INTO public.cards (card_id, tenant_id, content, metadata, created_at)
SELECT turn || x.suffix, :project_id, jsonb_build_object('__type__', 'TextContent', 'text', repeat(md5(turn || x.suffix), 6)),
       jsonb_build_object('type', x.type, 'role', x.role, 'author_id', 'agent.' || agent_id, 'agent_turn_id', turn, 'trace_id', trace), at
FROM planned CROSS JOIN (VALUES ('-instruction', 'task.instruction', 'user'), ('-s1-thought', 'agent.thought', 'assistant'),
                                ('-deliverable', 'task.deliverable', 'assistant')) x (suffix, type, role)
WHERE is_last;

-- name: fill_contexts :exec
-- The instruction, which is in the context box from its begin.
INSERT INTO public.box_cards (box_id, position, card_id) SELECT context_box, 1, turn || '-instruction' FROM planned WHERE is_last;

-- name: fill_conversations :exec
-- The conversations themselves.
INSERT INTO state.conversations (project_id, channel_id, agent_id, conversation_id, output_box_id, turn_count, last_turn_id, created_at, updated_at)
SELECT :project_id, 'public', agent_id, conversation_id, output_box, :rows::bigint / :conversations::bigint, turn, at, at FROM planned WHERE is_last;

-- name: add_output :exec
-- The other cards, which enter the box of the conversation later.
INSERT INTO public.box_cards (box_id, position, card_id)
SELECT output_box, x.position, turn || x.suffix FROM planned CROSS JOIN (VALUES (1, '-s1-thought'), (2, '-deliverable')) x (position, suffix)
WHERE is_last;

-- name: forget_plan :exec
-- Before the next part.
TRUNCATE planned;

-- name: raise_heads :exec
-- The agents' next epochs follow those of their turns.
UPDATE state.agent_state_head SET turn_epoch = :rows::bigint WHERE project_id = :project_id AND agent_id = ANY (:agents::text[]);

-- name: keep_triggers :exec
-- As before.
ALTER TABLE state.agent_inbox ENABLE TRIGGER USER;
ALTER TABLE state.turn_outcomes ENABLE TRIGGER USER;
ALTER TABLE state.agent_steps ENABLE TRIGGER USER;
ALTER TABLE public.cards ENABLE TRIGGER USER;
ALTER TABLE public.box_cards ENABLE TRIGGER USER;

-- name: tidy :exec
-- What autovacuum would have done by and by.
VACUUM (ANALYZE);

-- name: write_out :exec
-- All that was changed is written now, and not while statements are timed.
CHECKPOINT;
