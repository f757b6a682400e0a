-- Whether a list has a name, or the beginning of it before a `*`.
CREATE OR REPLACE FUNCTION state.lists(names jsonb, wanted text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT EXISTS (
        SELECT FROM jsonb_array_elements_text(CASE jsonb_typeof(names) WHEN 'array' THEN names ELSE '[]' END) n (name)
        WHERE n.name = wanted OR (right(n.name, 1) = '*' AND starts_with(wanted, left(n.name, -1))))
$$;
