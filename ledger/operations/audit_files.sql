-- The audit's rules on files (protocol §22). Of a window: those that were announced in it, or the cards made in it.

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

-- name: files_of_cards_are_kept :many
-- Protocol §22: a card that names files has a reference to each, and a reference its card.
SELECT jsonb_build_object('project_id', x.project_id, 'card_id', x.card_id, 'artifact_id', x.artifact_id) AS ids,
       x.detail
FROM (
    SELECT c.tenant_id AS project_id, c.card_id, n.artifact_id,
           'the card names the file, and there is no reference' AS detail
    FROM public.cards c CROSS JOIN LATERAL (
        SELECT DISTINCT e #>> '{}' AS artifact_id FROM jsonb_array_elements(
            CASE jsonb_typeof(c.metadata -> 'artifacts') WHEN 'array' THEN c.metadata -> 'artifacts' ELSE '[]' END) e) n
    WHERE c.metadata ? 'artifacts' AND (:since::timestamptz IS NULL OR c.created_at >= :since)
      AND (:project_id::text IS NULL OR c.tenant_id = :project_id)
      AND NOT EXISTS (SELECT FROM state.artifact_refs r WHERE r.project_id = c.tenant_id
                        AND r.artifact_id = n.artifact_id AND r.card_id = c.card_id)
    UNION ALL
    SELECT r.project_id, r.card_id, r.artifact_id, 'the reference is of a card that names no such file'
    FROM state.artifact_refs r
    WHERE (:since::timestamptz IS NULL OR r.created_at >= :since)
      AND (:project_id::text IS NULL OR r.project_id = :project_id)
      AND NOT EXISTS (SELECT FROM public.cards c WHERE c.card_id = r.card_id AND c.tenant_id = r.project_id
                        AND c.metadata -> 'artifacts' ? r.artifact_id)) x
ORDER BY ids LIMIT :row_limit::int;
