-- Whether a caller is a token that was revoked or has expired. The owner reads the tokens.
CREATE OR REPLACE FUNCTION state.is_revoked(project text, caller text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM state.gateway_tokens t
                   WHERE 'token.' || t.token_id = caller AND t.token_id = substr(caller, 7) AND t.project_id = project
                     AND (t.revoked_at IS NOT NULL OR t.expires_at <= clock_timestamp()));
$$;
