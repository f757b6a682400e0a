-- What every worker and bridge that signed on lately speaks; 0 if one does not say, or no bridge has signed on: bridges
-- do in rows of the target _bridge. A new type of inbox row is sent only where this has its level.
CREATE OR REPLACE FUNCTION state.protocol_level(silent_seconds float8) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT coalesce(CASE WHEN bool_or(w.worker_target = '_bridge') THEN min(coalesce(w.protocol_level, 0)) END, 0)
    FROM state.workers w WHERE w.last_seen_at > now() - make_interval(secs => silent_seconds)
$$;
