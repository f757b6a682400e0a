-- The versions of profiles: each put makes a card in a box of its own, which stays as long as a turn names it, or until
-- retention.

-- name: list_profile_versions :many
-- The versions of a profile that are there, the newest first, without what they say; whether it is the present one, and
-- how many turns had it, as far as these are counted.
WITH versions AS MATERIALIZED (
    SELECT x.card_id, x.created_at FROM (
        (SELECT c.card_id, c.created_at FROM public.cards c
         WHERE c.tenant_id COLLATE "C" = :project_id AND c.metadata ->> 'type' = 'sys.profile'
           AND left(lower(c.content #>> '{data,name}'), 128) = left(lower(:name::text), 128)
         ORDER BY c.created_at DESC LIMIT :row_limit::int)
        UNION
        (SELECT c.card_id, c.created_at FROM resource.profiles p  -- the present one, whatever its card calls it
         JOIN public.box_cards b ON b.box_id = state.as_uuid(p.profile_box_id)
         JOIN public.cards c ON c.card_id = b.card_id AND c.tenant_id = p.project_id
             AND c.metadata ->> 'type' = 'sys.profile'
         WHERE lower(p.name) = lower(:name) AND p.project_id = :project_id ORDER BY b.position LIMIT 1)) x
    ORDER BY x.created_at DESC LIMIT :row_limit::int
)
SELECT b.box_id::text AS profile_box_id, v.created_at, p.profile_box_id IS NOT NULL AS is_current,
       (SELECT count(*) FROM (
            SELECT FROM state.agent_inbox i WHERE lower(i.payload ->> 'profile_box_id') = b.box_id::text
              AND i.message_type IN {turn_types}
              AND i.project_id = :project_id LIMIT :turn_limit::int) x) AS turns
FROM versions v
CROSS JOIN LATERAL (SELECT x.box_id FROM public.box_cards x WHERE x.card_id = v.card_id
    ORDER BY x.card_id <> x.box_id || '-profile', x.box_id LIMIT 1) b
LEFT JOIN LATERAL (
    SELECT x.profile_box_id FROM resource.profiles x
    WHERE lower(x.name) = lower(:name) AND x.project_id = :project_id AND x.profile_box_id = b.box_id::text) p ON true
ORDER BY v.created_at DESC;

-- name: get_profile_version :opt
-- What a version of a profile says.
SELECT c.content -> 'data' AS data, c.created_at FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
WHERE b.box_id = state.as_uuid(:profile_box_id::text) AND c.tenant_id = :project_id
  AND c.metadata ->> 'type' = 'sys.profile'
ORDER BY b.position LIMIT 1;

-- name: list_tool_users :many
-- The profiles of a project that offer each of these tools, at most so many of each, by name.
SELECT u.tool_name, u.profile_name FROM (
    SELECT t.tool_name, p.name AS profile_name, row_number() OVER (PARTITION BY t.tool_name
                                                                   ORDER BY lower(p.name)) AS place
    FROM (SELECT x.* FROM resource.profiles x WHERE x.project_id = :project_id LIMIT 1000) p
    JOIN public.box_cards b ON b.box_id = state.as_uuid(p.profile_box_id) AND b.position = 1
    JOIN public.cards c ON c.card_id = b.card_id AND c.tenant_id = p.project_id
    CROSS JOIN LATERAL jsonb_array_elements_text(
        CASE jsonb_typeof(c.content #> '{data,allowed_tools}') WHEN 'array' THEN c.content #> '{data,allowed_tools}'
             ELSE '[]' END) t (tool_name)
    WHERE t.tool_name = ANY (:tool_names::text[])) u
WHERE u.place <= :row_limit::int ORDER BY u.tool_name, u.place;
