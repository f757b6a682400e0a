-- Files of projects (protocol §22).

-- name: begin_artifact :one
-- Announces a file whose bytes follow.
SELECT b.verdict, b.artifact FROM state.begin_artifact(:project_id, :channel_id, :asked::jsonb, :most_bytes::bigint,
                                                       :most_uploads::bigint) b;

-- name: commit_artifact :one
-- Makes a file ready whose bytes are in the store.
SELECT c.verdict, c.artifact FROM state.commit_artifact(:project_id, :channel_id, :artifact_id, :size::bigint, :hash,
                                                        :most_bytes::bigint) c;

-- name: read_artifact :opt
-- A file that is ready, within the channel if one is named.
SELECT a.artifact_id, a.channel_id, a.filename, a.mime, a.size, a.sha256, a.storage_uri, a.created_by, a.created_at,
       a.agent_turn_id
FROM resource.artifacts a
WHERE a.project_id = :project_id AND a.artifact_id = :artifact_id AND a.status = 'ready'
  AND (:channel_id::text IS NULL OR a.channel_id = :channel_id);

-- name: file_parts :many
-- What a card says of these files, of those that are ready.
SELECT a.artifact_id, coalesce(a.filename, 'file') AS filename, coalesce(a.mime, '') AS mime, a.size
FROM resource.artifacts a
WHERE a.project_id = :project_id AND a.artifact_id = ANY (:artifact_ids::text[]) AND a.status = 'ready';

-- name: ready_files :many
-- Those of these files that the channel has and that are ready.
SELECT a.artifact_id, a.channel_id, a.filename, a.mime, a.size, a.sha256, a.storage_uri, a.created_by, a.created_at,
       a.agent_turn_id
FROM resource.artifacts a
WHERE a.project_id = :project_id AND a.artifact_id = ANY (:artifact_ids::text[]) AND a.status = 'ready'
  AND a.channel_id = :channel_id;

-- name: list_artifacts :many
-- The files of a project, or of one of its channels, newest first.
SELECT a.artifact_id, a.channel_id, a.filename, a.mime, a.size, a.sha256, a.storage_uri, a.created_by, a.created_at,
       a.agent_turn_id
FROM resource.artifacts a
WHERE a.project_id COLLATE "C" = :project_id AND a.status = 'ready'
  AND (:channel_id::text IS NULL OR a.channel_id = :channel_id)
  AND (:before::timestamptz IS NULL OR (a.created_at, a.artifact_id) < (:before, :before_id::text))
ORDER BY a.created_at DESC, a.artifact_id DESC LIMIT :row_limit::int;

-- name: remove_artifact :one
-- Nobody reads the file any more; the safety net removes its bytes, and then its row. A repeat finds it until then.
-- `uploader`: only what is theirs and not ready.
WITH removed AS (
    UPDATE resource.artifacts a SET status = 'removed', updated_at = now()
    WHERE a.project_id = :project_id AND a.artifact_id = :artifact_id
      AND (:uploader::text IS NULL OR (a.status <> 'ready' AND a.created_by = :uploader))
    RETURNING a.artifact_id
)
SELECT EXISTS (SELECT FROM removed) AS found;

-- name: list_leaving :many
-- Files whose bytes are to be removed: removed ones, and those whose upload was not finished in this time, which can
-- not be finished any more.
UPDATE resource.artifacts a SET status = 'removed', updated_at = now()
FROM (SELECT x.project_id, x.artifact_id FROM resource.artifacts x
      WHERE x.status <> 'ready' AND x.updated_at < now() - CASE x.status WHEN 'uploading'
          THEN make_interval(secs => :upload_seconds::float8) ELSE make_interval(secs => :retry_seconds::float8) END
      ORDER BY x.updated_at LIMIT :row_limit::int FOR UPDATE SKIP LOCKED) due
WHERE a.project_id = due.project_id AND a.artifact_id = due.artifact_id
RETURNING a.project_id, a.artifact_id, a.storage_uri;

-- name: forget_artifact :exec
-- The bytes of a removed file are gone.
DELETE FROM resource.artifacts a
WHERE a.project_id = :project_id AND a.artifact_id = :artifact_id AND a.status = 'removed';

-- name: close_files :many
-- The next files of a project that is removed, whatever became of them: nobody reads them any more.
UPDATE resource.artifacts a SET status = 'removed', updated_at = now()
FROM (SELECT x.artifact_id FROM resource.artifacts x
      WHERE x.project_id = :project_id AND (:after::text IS NULL OR x.artifact_id > :after)
      ORDER BY x.artifact_id LIMIT :row_limit::int) next
WHERE a.project_id = :project_id AND a.artifact_id = next.artifact_id
RETURNING a.project_id, a.artifact_id, a.storage_uri;

-- name: list_kept_files :many
-- The next files that are ready and that Turnstile wrote, by project and id, with what their bytes are.
SELECT a.project_id, a.artifact_id, a.size, a.sha256, a.storage_uri FROM resource.artifacts a
WHERE (a.project_id, a.artifact_id) > (:after_project, :after_id) AND a.status = 'ready' AND a.created_by <> ''
  AND (:project_id::text IS NULL OR a.project_id = :project_id)
  AND (:since::timestamptz IS NULL OR a.created_at >= :since)
ORDER BY a.project_id, a.artifact_id LIMIT :row_limit::int;

-- name: list_unknown_objects :many
-- Those of these objects of the store (project/id) that no file has.
SELECT n.name FROM unnest(:names::text[]) n (name)
WHERE NOT EXISTS (SELECT FROM resource.artifacts a WHERE a.project_id = split_part(n.name, '/', 1)
                  AND a.artifact_id = substr(n.name, strpos(n.name, '/') + 1));
