-- Whether a caller has as many things of a kind as one caller may have (docs/limits.md), so that `added` more are
-- refused; most 0: any number. Exact: from half of the limit on a caller's requests wait for each other, so that each
-- counts all before; below that, what is made at one moment cannot reach it. A limit under 2000 is always exact so.
CREATE OR REPLACE FUNCTION state.is_full(kind text, project text, maker text, most bigint, added bigint DEFAULT 1)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    counted bigint;
    is_locked boolean := false;
BEGIN
    IF most = 0 OR maker IS NULL THEN
        RETURN false;
    END IF;
    LOOP
        CASE kind
            WHEN 'agents' THEN
                SELECT count(*) INTO counted FROM (
                    SELECT FROM resource.project_agents a
                    WHERE a.project_id COLLATE "C" = project AND a.made_by = maker LIMIT most) x;
            WHEN 'boxes' THEN
                SELECT count(*) INTO counted FROM (
                    SELECT FROM public.boxes b WHERE b.tenant_id COLLATE "C" = project AND b.unused_of = maker
                    LIMIT most) x;
            WHEN 'cards' THEN
                SELECT coalesce(sum(b.unused_cards), 0) INTO counted FROM public.boxes b
                WHERE b.tenant_id COLLATE "C" = project AND b.unused_of = maker;
            WHEN 'conversations' THEN
                SELECT count(*) INTO counted FROM (
                    SELECT FROM state.conversations c
                    WHERE c.project_id COLLATE "C" = project AND c.agent_id = '' AND c.made_by = maker LIMIT most) x;
            WHEN 'pushes' THEN
                SELECT count(*) INTO counted FROM (
                    SELECT FROM state.push_receivers p
                    WHERE p.project_id COLLATE "C" = project AND p.status = 'active' AND p.created_by = maker
                    UNION ALL
                    SELECT FROM state.webhooks w
                    WHERE w.project_id COLLATE "C" = project AND w.status = 'active' AND w.agent_turn_id IS NOT NULL
                      AND w.created_by = maker
                    LIMIT most) x;
        END CASE;
        IF counted + added > most THEN
            RETURN true;
        ELSIF is_locked OR (most >= 2000 AND counted + added <= most / 2) THEN
            RETURN false;
        END IF;
        PERFORM pg_advisory_xact_lock(hashtextextended(format('%s/%s/%s', kind, project, maker), 0));
        is_locked := true;
    END LOOP;
END $$;
