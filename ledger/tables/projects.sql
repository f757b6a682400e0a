-- Projects as CommonGround v1r4's API lists and changes them. Nothing here reads them: a project is what its rows say
-- it is. Where a database has v1r4's own table, that stays.
CREATE TABLE IF NOT EXISTS public.projects (
    project_id text PRIMARY KEY,
    title      text NOT NULL,
    status     text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'inactive', 'archived')),
    owner_id   text NOT NULL DEFAULT 'turnstile',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
