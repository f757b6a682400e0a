-- Makes a file ready: its bytes are in the store. Of two uploads of one request the first one counts; the other is
-- removed, and names it if it had the same bytes.
-- verdict: accepted | duplicate (ready before, with these bytes; or `artifact` is) | key_conflict (the request's name
-- has made a file of other bytes) | files_full (more than was announced, and too much) | unknown_artifact
CREATE OR REPLACE FUNCTION state.commit_artifact(project text, channel text, file text, bytes bigint, hash text,
    most_bytes bigint, OUT verdict text, OUT artifact text)
LANGUAGE plpgsql AS $$
DECLARE
    a resource.artifacts;
    other resource.artifacts;
BEGIN
    artifact := file;
    PERFORM pg_advisory_xact_lock(hashtextextended('files/' || project, 0));
    SELECT x.* INTO a FROM resource.artifacts x
    WHERE x.project_id = project AND x.artifact_id = file AND x.channel_id = channel FOR NO KEY UPDATE;
    IF NOT FOUND OR a.status = 'removed' THEN
        verdict := 'unknown_artifact';
        RETURN;
    ELSIF a.status = 'ready' THEN
        verdict := CASE WHEN a.sha256 = hash THEN 'duplicate' ELSE 'key_conflict' END;
        RETURN;
    END IF;
    SELECT x.* INTO other FROM resource.artifacts x
    WHERE x.project_id = project AND x.correlation_id = a.correlation_id AND x.status = 'ready';
    IF FOUND THEN
        verdict := CASE WHEN other.sha256 = hash THEN 'duplicate' ELSE 'key_conflict' END;
        artifact := other.artifact_id;
    ELSIF most_bytes > 0 AND bytes > a.size AND most_bytes < bytes - a.size + (
        SELECT coalesce(sum(x.size), 0) FROM resource.artifacts x
        WHERE x.project_id = project AND x.status <> 'removed') THEN
        verdict := 'files_full';
    END IF;
    IF verdict IS NOT NULL THEN
        UPDATE resource.artifacts x SET status = 'removed', updated_at = clock_timestamp()
        WHERE x.project_id = project AND x.artifact_id = file;
        RETURN;
    END IF;
    UPDATE resource.artifacts x SET status = 'ready', size = bytes, sha256 = hash, updated_at = clock_timestamp()
    WHERE x.project_id = project AND x.artifact_id = file;
    verdict := 'accepted';
END $$;
