-- Projects as v1r4's API lists them. Where a database has a table of that name, the table stays.
DO $$ BEGIN
    IF coalesce((SELECT c.relkind = 'v' FROM pg_class c WHERE c.oid = to_regclass('public.projects')), true) THEN
        CREATE OR REPLACE VIEW public.projects AS
        SELECT p.project_id, p.project_id AS title, 'active' AS status, 'turnstile' AS owner_id,
               min(p.since) AS created_at, max(p.since) AS updated_at
        FROM (SELECT project_id, updated_at AS since FROM resource.profiles
              UNION ALL SELECT project_id, created_at FROM resource.project_agents) p
        GROUP BY p.project_id;
    END IF;
END $$;
