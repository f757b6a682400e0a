-- What a deliverable's card says, as one JSON value; of a turn that made none itself, its last text or why it ended.
CREATE OR REPLACE FUNCTION state.value_of_card(content jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN octet_length(v::text) > 500000 THEN to_jsonb(left(v #>> '{}', 100000)) ELSE v END
    FROM (SELECT CASE
        WHEN content ->> '__type__' = 'TextContent' THEN content -> 'text'
        WHEN content ->> '__type__' = 'JsonContent' AND content -> 'data' ? 'terminal_status'
        THEN to_jsonb(coalesce(content -> 'data' ->> 'last_thought', content -> 'data' ->> 'reason'))
        WHEN content ->> '__type__' = 'JsonContent' THEN content -> 'data'
        ELSE content END AS v) x
$$;
