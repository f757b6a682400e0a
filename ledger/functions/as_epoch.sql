-- An epoch that a v1r4 writer keeps in the payload; as_count takes nine digits.
CREATE OR REPLACE FUNCTION state.as_epoch(value text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value ~ '^[0-9]{1,16}$' THEN value::bigint END;
