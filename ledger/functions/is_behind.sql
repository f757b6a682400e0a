-- Whether a process that has signed on in the last minute, and has not left, speaks less than this level of the
-- protocol: what needs the level waits until all that run are upgraded.
CREATE OR REPLACE FUNCTION state.is_behind(level integer) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM state.workers w
                   WHERE w.last_seen_at > now() - interval '1 minute' AND w.left_at IS NULL
                     AND coalesce(w.protocol_level, 0) < level)
$$;
