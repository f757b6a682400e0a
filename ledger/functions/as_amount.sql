-- A number that others have written, within what sums of bigint bear; null where nobody knows.
CREATE OR REPLACE FUNCTION state.as_amount(value numeric) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value IS NOT NULL THEN least(greatest(ceil(value), 0), 1000000000000000)::bigint END;
