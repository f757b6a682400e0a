-- A deliverable as a fork's result shows it: those of the first five fields of a `submit_result` that say something, as
-- v1r4 writes them; of anything else all of it.
CREATE OR REPLACE FUNCTION state.digest_of(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((
        SELECT string_agg(f.field ->> 'name' || ': ' || (f.field ->> 'value'), ' | ' ORDER BY f.place)
        FROM jsonb_array_elements(
            CASE jsonb_typeof(value -> 'fields') WHEN 'array' THEN value -> 'fields' ELSE '[]' END)
            WITH ORDINALITY f (field, place)
        WHERE f.place <= 5 AND f.field ->> 'name' <> '' AND f.field ->> 'value' <> ''), value #>> '{}')
$$;
