-- What the metadata of a card says of the files that its content names: nothing of a content without files.
CREATE OR REPLACE FUNCTION state.artifacts_of(content jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN content ? 'parts' THEN jsonb_build_object('artifacts',
        jsonb_path_query_array(content, 'lax $.parts[*].artifact_id')) ELSE '{}' END
$$;
