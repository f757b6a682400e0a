-- What a turn was asked with, and what it had read and made when it ended (protocol §14.4).

-- name: get_turn_request :opt
-- The settings and notes that a turn was enqueued with, and who asked for it.
SELECT coalesce(i.payload -> 'runtime_config', '{}') - 'card_id' || coalesce(c.text, '{}') AS runtime_config,
       coalesce(e.metadata, '{}') AS metadata, coalesce(i.context_headers ->> 'CG-Sender', '') AS requester
FROM state.agent_inbox i
LEFT JOIN LATERAL (
    SELECT CASE jsonb_typeof(c.content -> 'data') WHEN 'object' THEN c.content -> 'data' END AS text FROM public.cards c
    WHERE c.card_id = i.payload #>> '{runtime_config,card_id}' AND c.tenant_id = i.project_id
      AND state.is_alive(c.expires_at, c.deleted_at)) c ON true
LEFT JOIN state.execution_edges e ON e.edge_id = 'enqueue-' || i.agent_turn_id AND e.project_id = i.project_id
WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id AND i.message_type IN {turn_types};

-- name: list_turn_past :many
-- The cards that a turn had read and made when it ended, in the order in which models read them, without those that no
-- model reads: what its output box had before it, what it read of its context box, and its own. Of a turn that
-- compacted its memory that is the box in which it ended.
WITH
turn AS MATERIALIZED (
    SELECT coalesce(i.payload -> 'rerun' -> 'line', '[]') || to_jsonb(i.agent_turn_id) AS turns,
           state.as_uuid(i.payload ->> 'context_box_id') AS context_box_id,
           coalesce(o.output_box_id, h.output_box_id, state.as_uuid(i.payload ->> 'output_box_id')) AS output_box_id, (
               SELECT state.as_count(s.metadata #>> '{turn_config,context_position}') FROM state.agent_steps s
               WHERE s.step_id = i.agent_turn_id || '-s1' AND s.project_id = i.project_id) AS context_position
    FROM state.agent_inbox i
    LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id
    LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
        AND h.active_agent_turn_id = i.agent_turn_id
    WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id AND i.message_type IN {turn_types}
),
context AS MATERIALIZED (
    SELECT b.position, b.card_id, c.metadata ->> 'type' AS type
    FROM turn JOIN public.box_cards b ON b.box_id = turn.context_box_id
        AND (turn.context_position IS NULL OR b.position <= turn.context_position)
    JOIN public.cards c ON c.card_id = b.card_id AND c.tenant_id = :project_id
        AND state.is_alive(c.expires_at, c.deleted_at)
),
output AS MATERIALIZED (
    SELECT b.position, b.card_id, c.metadata ->> 'type' AS type, c.metadata ->> 'type' <> 'memory.summary' AND coalesce(
               turn.turns ? (c.metadata ->> 'agent_turn_id'), false) AS own
    FROM turn JOIN public.box_cards b ON b.box_id = turn.output_box_id
    JOIN public.cards c ON c.card_id = b.card_id AND c.tenant_id = :project_id
        AND state.is_alive(c.expires_at, c.deleted_at)
),
ended AS MATERIALIZED (SELECT coalesce(max(o.position), 0) AS position FROM output o WHERE o.own)
SELECT x.card_id FROM (
    SELECT 1 AS part, o.position, o.card_id, o.type FROM output o JOIN ended ON o.position < ended.position
    WHERE NOT o.own AND o.card_id NOT IN (SELECT c.card_id FROM context c)
    UNION ALL
    SELECT 2, c.position, c.card_id, c.type FROM context c
    UNION ALL
    SELECT 3, o.position, o.card_id, o.type FROM output o
    WHERE o.own AND o.card_id NOT IN (SELECT c.card_id FROM context c)) x
WHERE x.type IN ('task.instruction', 'agent.thought', 'tool.result',
                 'task.deliverable', 'sys.must_end_with_required', 'memory.summary')
ORDER BY x.part, x.position LIMIT :row_limit::int;

-- name: find_requested_turn :opt
-- The turn that was asked for under this correlation.
SELECT i.agent_turn_id FROM state.agent_inbox i
WHERE i.correlation_id = :correlation_id AND i.project_id = :project_id AND i.message_type IN {turn_types}
ORDER BY i.message_type = 'turn' DESC LIMIT 1;

-- name: list_cards :many
-- These cards of a project, in the order in which they are named.
SELECT c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata
FROM unnest(:cards::text[]) WITH ORDINALITY n (card_id, place)
JOIN public.cards c ON c.card_id = n.card_id AND c.tenant_id = :project_id
    AND state.is_alive(c.expires_at, c.deleted_at)
ORDER BY n.place;
