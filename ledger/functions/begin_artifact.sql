-- Announces a file whose bytes follow (protocol §22): so long as it is uploading nobody can read it. asked:
-- artifact_id, filename, mime, size (what is announced), storage_uri, metadata, correlation_id, created_by.
-- verdict: accepted | duplicate (a request of this name has made the file that is named) | files_full | uploads_full
CREATE OR REPLACE FUNCTION state.begin_artifact(project text, channel text, asked jsonb, most_bytes bigint,
    most_uploads bigint, OUT verdict text, OUT artifact text)
LANGUAGE plpgsql AS $$
DECLARE
    kept bigint;
    uploads bigint;
BEGIN
    SELECT a.artifact_id INTO artifact FROM resource.artifacts a
    WHERE a.project_id = project AND a.correlation_id = asked ->> 'correlation_id' AND a.status = 'ready';
    IF FOUND THEN
        verdict := 'duplicate';
        RETURN;
    END IF;
    IF most_bytes > 0 OR most_uploads > 0 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('files/' || project, 0));
        SELECT coalesce(sum(a.size) FILTER (WHERE a.status <> 'removed'), 0),
               count(*) FILTER (WHERE a.status = 'uploading')
        INTO kept, uploads FROM resource.artifacts a WHERE a.project_id = project;
        IF most_bytes > 0 AND kept + (asked ->> 'size')::bigint > most_bytes THEN
            verdict := 'files_full';
            RETURN;
        ELSIF most_uploads > 0 AND uploads >= most_uploads THEN
            verdict := 'uploads_full';
            RETURN;
        END IF;
    END IF;
    INSERT INTO resource.artifacts (project_id, artifact_id, filename, mime, size, storage_uri, metadata, channel_id,
        created_by, correlation_id, status, created_at, updated_at)
    VALUES (project, asked ->> 'artifact_id', asked ->> 'filename', asked ->> 'mime', (asked ->> 'size')::bigint,
        asked ->> 'storage_uri', coalesce(asked -> 'metadata', '{}'), channel, asked ->> 'created_by',
        asked ->> 'correlation_id', 'uploading', clock_timestamp(), clock_timestamp());
    artifact := asked ->> 'artifact_id';
    verdict := 'accepted';
END $$;
