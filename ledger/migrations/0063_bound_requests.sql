-- What a request may name besides its agent: profiles and models that the profile, or the token, lets it (protocol §6, enqueue).

ALTER TABLE state.gateway_tokens
    ADD COLUMN profiles jsonb CHECK (jsonb_typeof(profiles) = 'array'),
    ADD COLUMN models jsonb CHECK (jsonb_typeof(models) = 'array');
COMMENT ON COLUMN state.gateway_tokens.profiles IS 'the profiles that it may name, in lower case, in place of what they say themselves; null: as they say';
COMMENT ON COLUMN state.gateway_tokens.models IS 'the models that it may name beside the profile''s own, in place of what the profile says; null: as it says';

-- The profile in a box, as it was put.
CREATE FUNCTION state.profile_in(project text, box uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT c.content -> 'data' FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
    WHERE b.box_id = box AND c.tenant_id = project AND c.metadata ->> 'type' = 'sys.profile' ORDER BY b.position DESC LIMIT 1
$$;

-- Whether a list has a name, or the beginning of it before a `*`.
CREATE FUNCTION state.lists(names jsonb, wanted text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT EXISTS (
        SELECT FROM jsonb_array_elements_text(CASE jsonb_typeof(names) WHEN 'array' THEN names ELSE '[]' END) n (name)
        WHERE n.name = wanted OR (right(n.name, 1) = '*' AND starts_with(wanted, left(n.name, -1))))
$$;

-- Of each limit the smallest that one of these budgets has; null if none has any.
CREATE FUNCTION state.least_budget(VARIADIC budgets jsonb[]) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_object_agg(x.name, x.least) FROM (
        SELECT e.key AS name, min(e.value::numeric) AS least FROM unnest(budgets) b (budget)
        CROSS JOIN LATERAL jsonb_each_text(CASE jsonb_typeof(b.budget) WHEN 'object' THEN b.budget ELSE '{}' END) e
        WHERE e.value IS NOT NULL GROUP BY e.key) x
$$;

-- Why a request of somebody who does not operate may not name this profile or model; null if it may. A profile beside an agent is named in
-- place of the agent's own (`own`); alone it says by `instances` that it may be named. The owner reads the tokens.
CREATE FUNCTION state.refused_name(project text, caller text, own uuid, box uuid, profile text, model text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t state.gateway_tokens;
    said jsonb := state.profile_in(project, box);
BEGIN
    SELECT x.* INTO t FROM state.gateway_tokens x WHERE 'token.' || x.token_id = caller AND x.token_id = substr(caller, 7) AND x.project_id = project;
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
