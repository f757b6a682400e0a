-- Questions to people, as people look at them (protocol §13).

-- name: list_open_interrupts :many
-- Open questions of a project, of one channel or agent if that is given, the newest first, those older than a given
-- one. Whoever waits for what is asked asks this again and again: it reads what is open alone.
SELECT {interrupt_columns} FROM state.interrupts t
{waiting_call}
WHERE t.project_id COLLATE "C" = :project_id AND t.status = 'open' AND {interrupts_of_page}
ORDER BY t.created_at DESC, t.interrupt_id DESC LIMIT :row_limit::int;

-- name: count_open_interrupts :one
-- How many open questions to people a project has, or one channel of it, counted up to a number.
SELECT count(*)::int AS open FROM (
    SELECT FROM state.interrupts t
    WHERE t.project_id COLLATE "C" = :project_id AND t.status = 'open' AND t.reason <> 'client_tool'
      AND (:channel_id::text IS NULL OR t.channel_id = :channel_id) LIMIT :most::int) counted;

-- name: list_interrupts :many
-- As list_open_interrupts, in any status, or one.
SELECT {interrupt_columns} FROM state.interrupts t
{waiting_call}
WHERE t.project_id COLLATE "C" = :project_id AND (:status::text IS NULL OR t.status = :status) AND {interrupts_of_page}
ORDER BY t.created_at DESC, t.interrupt_id DESC LIMIT :row_limit::int;

-- name: list_interrupts_of_turn :many
-- As list_interrupts, of one turn.
SELECT {interrupt_columns} FROM state.interrupts t
{waiting_call}
WHERE t.agent_turn_id = :agent_turn_id AND t.project_id = :project_id AND (:status::text IS NULL OR t.status = :status)
  AND {interrupts_of_page}
ORDER BY t.created_at DESC, t.interrupt_id DESC LIMIT :row_limit::int;

-- name: get_interrupt :opt
-- A question of a project, of one channel if that is given, with the content of its call's card, and the names of the
-- arguments that the tool's options added.
SELECT {interrupt_columns}, c.content, c.added FROM state.interrupts t
{waiting_call}
LEFT JOIN LATERAL (
    SELECT k.content, k.metadata -> 'added' AS added FROM public.cards k
    WHERE k.card_id = coalesce(w.call_card_id, t.tool_call_id || '-call') AND k.tenant_id = t.project_id
      AND state.is_alive(k.expires_at, k.deleted_at)) c ON true
WHERE t.interrupt_id = :interrupt_id AND t.project_id = :project_id
  AND (:channel_id::text IS NULL OR t.channel_id = :channel_id);

-- name: get_interrupt_context :opt
-- What a person should know of a question beside its call: what the turn was asked, what its model said with the call,
-- the tool as it is now, whether that is another than the one that was asked about, the card that was asked about if a
-- person edited it, and the answer.
SELECT i.payload ->> 'conversation_id' AS conversation_id, left({instruction_of(i)}, :text_limit::int) AS asked, (
           SELECT left(k.content ->> 'text', :text_limit::int)
           FROM state.agent_steps s CROSS JOIN LATERAL jsonb_array_elements_text(
               CASE jsonb_typeof(s.metadata -> 'new_card_ids') WHEN 'array' THEN s.metadata -> 'new_card_ids'
                    ELSE '[]' END) n (card_id)
           JOIN public.cards k ON k.card_id = n.card_id AND k.tenant_id = t.project_id
               AND k.metadata ->> 'type' = 'agent.thought'
               AND state.is_alive(k.expires_at, k.deleted_at)
           WHERE s.step_id = t.step_id AND s.project_id = t.project_id LIMIT 1) AS thought,
       (SELECT to_jsonb(r) - 'project_id' FROM resource.tools r
        WHERE r.tool_name = t.tool_name AND r.project_id = t.project_id) AS tool,
       t.tool_changed, t.tool_pin IS NOT NULL AND t.status = 'open'
           AND t.tool_pin ->> 'target_subject' NOT LIKE '%.cmd.sys.pmo.internal.%'
           AND NOT EXISTS (
               SELECT FROM resource.tools r WHERE r.tool_name = t.tool_name AND r.project_id = t.project_id
                 AND r.target_subject IS NOT DISTINCT FROM t.tool_pin ->> 'target_subject'
                 AND coalesce(nullif(r.parameters, 'null'), '{}') = t.tool_pin -> 'parameters') AS will_change,
       CASE WHEN t.decision = 'edit' THEN (
           SELECT jsonb_build_object('content', k.content, 'added', k.metadata -> 'added')
           FROM public.cards k WHERE k.card_id = t.tool_call_id || '-call' AND k.tenant_id = t.project_id
             AND state.is_alive(k.expires_at, k.deleted_at)) END AS before_edit,
       CASE WHEN t.decision = 'respond' THEN CASE WHEN t.call_key IS NOT NULL
                                                       THEN jsonb_build_object('value', t.response) ELSE (
           SELECT k.content -> 'result' FROM public.cards k
           WHERE k.card_id = t.tool_call_id || '-result' AND k.tenant_id = t.project_id
             AND state.is_alive(k.expires_at, k.deleted_at)) END END AS answer,
       NOT t.requester_may_decide AND state.has_words(t, :reader) AS own_words
FROM state.interrupts t
JOIN state.agent_inbox i ON i.agent_turn_id = t.agent_turn_id AND i.project_id = t.project_id
    AND i.message_type IN {turn_types}
WHERE t.interrupt_id = :interrupt_id AND t.project_id = :project_id
  AND (:channel_id::text IS NULL OR t.channel_id = :channel_id);

-- name: list_call_contents :many
-- The contents of these cards of calls, with the names of what the tools' options added, without those that are large.
SELECT c.card_id, c.content, c.added FROM unnest(:card_ids::text[]) n (card_id)
CROSS JOIN LATERAL (
    SELECT k.card_id, k.content, k.metadata -> 'added' AS added FROM public.cards k
    WHERE k.card_id = n.card_id AND k.tenant_id = :project_id AND k.metadata ->> 'type' = 'tool.call'
      AND state.is_alive(k.expires_at, k.deleted_at) LIMIT 1) c
WHERE octet_length(c.content::text) <= :content_limit::int;

-- name: list_client_calls :many
-- The calls that clients run of the turns whose calls these are (protocol §19), whatever became of them.
SELECT t.interrupt_id, t.tool_call_id, t.agent_turn_id, t.step_id, t.status, t.requester, t.channel_id
FROM state.interrupts t
WHERE t.project_id = :project_id AND t.reason = 'client_tool' AND t.agent_turn_id = ANY (ARRAY(
    SELECT q.agent_turn_id FROM state.interrupts q
    WHERE q.interrupt_id = ANY (:interrupt_ids::text[]) AND q.project_id = :project_id))
ORDER BY t.created_at, t.interrupt_id;
