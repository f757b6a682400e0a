-- What a program records and reads under the call that it runs (protocol §21).

-- name: step_of_call :one
-- Records a step of a call, once for each key, or looks for it; see its function.
SELECT state.step_of_call(:project_id, :tool_call_id, :key, :recorded::jsonb)::text AS step;

-- name: page_call_history :many
-- The next cards that a turn may read: its output box's of earlier turns, its context box's as of its first step, then
-- its output box's own steers. At most 600 kB of content, or one card.
SELECT y.part, y.position, y.card_id, y.content::text AS content, y.metadata::text AS metadata FROM (
    SELECT x.*, sum(octet_length(x.content::text)) OVER (ORDER BY x.part, x.position) AS size,
           row_number() OVER (ORDER BY x.part, x.position) AS number
    FROM (
        SELECT CASE WHEN o.part = 2 THEN 2
                    WHEN c.metadata ->> 'agent_turn_id' = :agent_turn_id THEN 3 ELSE 1 END AS part,
               b.position, c.card_id, c.content, c.metadata
        FROM (VALUES (1, :output_box_id::uuid, NULL::int), (2, :context_box_id::uuid, (
                SELECT state.as_count(s.metadata #>> '{turn_config,context_position}') FROM state.agent_steps s
                WHERE s.step_id = :agent_turn_id || '-s1' AND s.project_id = :project_id))) o (part, box_id, upto)
        JOIN public.box_cards b ON b.box_id = o.box_id AND b.position <= coalesce(o.upto, b.position)
        JOIN public.cards c ON c.card_id = b.card_id AND c.tenant_id = :project_id
        WHERE state.is_alive(c.expires_at, c.deleted_at)
          AND (o.part = 2 OR c.metadata ->> 'agent_turn_id' IS DISTINCT FROM :agent_turn_id
               OR c.metadata ->> 'type' = 'task.steer')
          AND coalesce(c.metadata ->> 'type', '') NOT IN ('tool.call', 'sys.tools', 'sys.rendered_prompt',
              'sys.profile', 'task.runtime_config', 'memory.cut')
          AND coalesce(c.metadata ->> 'type', '') NOT LIKE 'meta.%'
    ) x
    WHERE (x.part, x.position) > (:after_part::int, :after_position::int)
    ORDER BY x.part, x.position LIMIT :row_limit::int) y
WHERE y.size <= 600000 OR y.number = 1
ORDER BY y.part, y.position;
