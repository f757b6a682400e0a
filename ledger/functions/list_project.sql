-- Lists the project of a new profile among the projects, where it is not yet.
CREATE OR REPLACE FUNCTION state.list_project() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.projects (project_id, title, owner_id) VALUES (NEW.project_id, NEW.project_id, 'turnstile')
    ON CONFLICT (project_id) DO NOTHING;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER profiles_list_project AFTER INSERT ON resource.profiles
    FOR EACH ROW EXECUTE FUNCTION state.list_project();
