-- A JSON list of texts as an array. In PL/pgSQL, as all that each attempt at a model calls: it keeps its plans.
CREATE OR REPLACE FUNCTION state.text_list(value jsonb) RETURNS text[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN ARRAY(SELECT jsonb_array_elements_text(value));
END $$;
