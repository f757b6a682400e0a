-- The audit's rule on files (protocol §22). Of a window: those that were announced in it.

-- name: files_are_whole_or_go :many
-- Protocol §22: a file that Turnstile keeps has the hash of its bytes, and one whose upload was not finished is gone
-- two hours later.
SELECT jsonb_build_object('project_id', a.project_id, 'artifact_id', a.artifact_id) AS ids,
       CASE a.status WHEN 'ready' THEN 'it is ready, and has no hash' ELSE 'its upload ended, and it is still there' END
           AS detail
FROM resource.artifacts a
WHERE ((a.status = 'ready' AND a.created_by <> '' AND a.sha256 IS NULL)
       OR (a.status = 'uploading' AND a.updated_at < now() - interval '2 hours'))
  AND (:since::timestamptz IS NULL OR a.created_at >= :since)
  AND (:project_id::text IS NULL OR a.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;
