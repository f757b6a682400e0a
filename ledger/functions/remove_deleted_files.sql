-- Removes the files that a deletion has noted and that no card names any more: what is known of each goes at once, and
-- the safety net removes its bytes, then its row (protocol §22). Each is locked before it is judged, as a card that
-- names it locks it.
CREATE OR REPLACE FUNCTION state.remove_deleted_files(deletion text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM resource.artifacts a JOIN state.deletion_items i ON i.item_id = a.artifact_id
        AND i.project_id = a.project_id AND i.kind = 'file' AND i.deletion_id = deletion
    ORDER BY a.artifact_id FOR UPDATE OF a;
    UPDATE resource.artifacts a SET status = 'removed', filename = NULL, mime = NULL, metadata = '{}',
        correlation_id = NULL, updated_at = now()
    FROM state.deletion_items i
    WHERE i.deletion_id = deletion AND i.kind = 'file' AND a.artifact_id = i.item_id AND a.project_id = i.project_id
      AND NOT EXISTS (SELECT FROM state.artifact_refs r
                      WHERE r.project_id = a.project_id AND r.artifact_id = a.artifact_id);
END $$;
