-- An id that a stranger wrote; null instead of an error that would hang the statement which reads it.
CREATE OR REPLACE FUNCTION state.as_uuid(value text) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value ~ '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$' THEN value::uuid END;
