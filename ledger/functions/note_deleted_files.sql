-- Notes the files that these cards name, which a running deletion is about to remove or empty.
CREATE OR REPLACE FUNCTION state.note_deleted_files(deletion text, ids text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO state.deletion_items (deletion_id, project_id, kind, item_id)
    SELECT DISTINCT d.deletion_id, d.project_id, 'file', r.artifact_id
    FROM state.artifact_refs r JOIN state.deletions d ON d.deletion_id = deletion AND d.project_id = r.project_id
    WHERE r.card_id = ANY (ids)
    ON CONFLICT DO NOTHING
$$;
