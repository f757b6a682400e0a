-- Why a request of somebody who does not operate may not name this profile or model; null if it may. A profile beside
-- an agent is named in place of the agent's own (`own`); alone it says by `instances` that it may be named. The owner
-- reads the tokens.
CREATE OR REPLACE FUNCTION state.refused_name(project text, caller text, own uuid, box uuid, profile text, model text)
RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t state.gateway_tokens;
    said jsonb := state.profile_in(project, box);
BEGIN
    SELECT x.* INTO t FROM state.gateway_tokens x
    WHERE 'token.' || x.token_id = caller AND x.token_id = substr(caller, 7) AND x.project_id = project;
    IF profile IS NOT NULL AND box IS DISTINCT FROM own AND NOT (CASE
           WHEN t.profiles IS NOT NULL THEN state.lists(t.profiles, lower(profile))
           WHEN own IS NULL THEN true
           ELSE coalesce(said -> 'free' = 'true', false) END) THEN
        RETURN 'profile_not_allowed';
    END IF;
    IF model IS NOT NULL AND model IS DISTINCT FROM said #>> '{llm_config,model}' AND NOT (CASE
           WHEN t.models IS NOT NULL THEN state.lists(t.models, model)
           ELSE coalesce(said -> 'free' = 'true', false) OR state.lists(said -> 'models', model) END) THEN
        RETURN 'model_not_allowed';
    END IF;
    RETURN NULL;
END $$;
