-- A small count that a stranger wrote; null instead of an error that would hang the statement which reads it.
CREATE OR REPLACE FUNCTION state.as_count(value text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value ~ '^[0-9]{1,9}$' THEN value::integer END;
