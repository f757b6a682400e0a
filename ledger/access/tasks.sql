-- Turns as tasks of A2A (protocol §17.3).

-- name: get_task :opt
-- A turn of an agent, or of an instance of a profile, in one channel if that is given, with the last instruction that
-- it was asked with.
SELECT {task_columns}, {instruction_of(i)} AS instruction
FROM {request_of(:agent_turn_id)} i
{task_joins}
WHERE {task_of_target};

-- name: page_tasks :many
-- variant: page_tasks_of_agent, without any_agent, profiles
-- variant: page_tasks_of_agent_in_channel, without any_agent, any_channel, profiles
-- variant: page_tasks_of_conversation, without any_conversation, profiles
-- variant: page_tasks_of_instances_talk, without any_conversation
-- The newest turns of an agent or a profile before a place, in one conversation if that is given.
SELECT {task_columns}, CASE WHEN :with_history::boolean THEN {instruction_of(i)} END AS instruction
FROM state.agent_inbox i
{task_joins}
WHERE i.project_id COLLATE "C" = :project_id AND i.message_type IN {turn_types}
-- only for any_channel
  AND (:channel_id::text IS NULL OR i.channel_id = :channel_id)
-- else
  AND i.channel_id COLLATE "C" = :channel_id AND i.agent_turn_id >= ''
-- end
-- only for any_agent
  AND (:agent_id::text IS NULL OR i.agent_id = :agent_id)
-- else
  AND i.agent_id COLLATE "C" = :agent_id AND i.agent_turn_id >= ''
-- end
-- only for profiles
  AND {task_of_profile}
-- end
-- only for any_conversation
  AND (:conversation_id::text IS NULL OR i.payload ->> 'conversation_id' = :conversation_id)
-- else
  AND (i.payload ->> 'conversation_id') COLLATE "C" = :conversation_id AND i.agent_turn_id >= ''
-- end
  AND i.created_at <= coalesce(:before_at::timestamptz, 'infinity')  -- where the index is entered
  AND (:before_at::timestamptz IS NULL OR i.created_at < :before_at
       OR (i.created_at = :before_at AND i.agent_turn_id < :before_id))
ORDER BY i.created_at DESC, i.agent_turn_id DESC LIMIT :row_limit::int;

-- name: read_tasks :many
-- These turns, which were found among those of an agent or a profile, in their order.
SELECT {task_columns}, CASE WHEN :with_history::boolean THEN {instruction_of(i)} END AS instruction
FROM unnest(:turns::text[]) WITH ORDINALITY t (agent_turn_id, place)
CROSS JOIN LATERAL (
    SELECT x.* FROM state.agent_inbox x
    WHERE x.agent_turn_id = t.agent_turn_id AND x.project_id = :project_id AND x.message_type IN {turn_types} LIMIT 1) i
{task_joins}
ORDER BY t.place;

-- name: count_tasks :one
-- variant: count_tasks_of_agent, without any_agent, profiles
-- variant: count_tasks_of_agent_in_channel, without any_agent, any_channel, profiles
-- variant: count_tasks_of_conversation, without any_conversation, profiles
-- variant: count_tasks_of_instances_talk, without any_conversation
-- How many turns an agent or a profile has, in one conversation if that is given, counted up to a number.
SELECT count(*)::int AS total FROM (
    SELECT FROM state.agent_inbox i
    WHERE i.project_id COLLATE "C" = :project_id AND i.message_type IN {turn_types}
-- only for any_channel
  AND (:channel_id::text IS NULL OR i.channel_id = :channel_id)
-- else
  AND i.channel_id COLLATE "C" = :channel_id AND i.agent_turn_id >= ''
-- end
-- only for any_agent
  AND (:agent_id::text IS NULL OR i.agent_id = :agent_id)
-- else
  AND i.agent_id COLLATE "C" = :agent_id AND i.agent_turn_id >= ''
-- end
-- only for profiles
  AND {task_of_profile}
-- end
-- only for any_conversation
  AND (:conversation_id::text IS NULL OR i.payload ->> 'conversation_id' = :conversation_id)
-- else
  AND (i.payload ->> 'conversation_id') COLLATE "C" = :conversation_id AND i.agent_turn_id >= ''
-- end
    -- in the order of an index, so that it is entered
    ORDER BY i.created_at DESC, i.agent_turn_id DESC LIMIT :most::int) counted;

-- name: describe_target :opt
-- What an agent or a profile says of itself, with the tools that its profile offers: for its card.
SELECT p.name AS profile_name, p.tags, coalesce(a.display_name, a.agent_id, p.name) AS name,
       coalesce(a.metadata ->> 'description', '') AS description,
       greatest(a.created_at, p.updated_at) AS since, coalesce((
           SELECT jsonb_agg(jsonb_build_object('name', t.tool_name, 'description', left(t.description, 1000))
                            ORDER BY t.tool_name) FROM resource.tools t
           WHERE t.project_id = p.project_id AND CASE jsonb_typeof(k.offered)
                                                      WHEN 'array' THEN k.offered ? t.tool_name END), '[]') AS tools
FROM resource.profiles p
LEFT JOIN resource.project_agents a ON a.agent_id = :agent_id AND a.project_id = p.project_id
LEFT JOIN LATERAL (
    SELECT c.content #> '{data,allowed_tools}' AS offered FROM public.box_cards b
    JOIN public.cards c ON c.card_id = b.card_id
    WHERE b.box_id = state.as_uuid(p.profile_box_id) AND c.tenant_id = p.project_id
      AND c.metadata ->> 'type' = 'sys.profile'
    ORDER BY b.position LIMIT 1) k ON true
WHERE p.project_id = :project_id AND CASE WHEN :agent_id::text IS NULL THEN lower(p.name) = lower(:profile_name::text)
                                          ELSE state.as_uuid(p.profile_box_id) = a.profile_box_id END;
