-- Whether a project has this many live turns: each counts by its inbox row until it begins, then by its head.
CREATE OR REPLACE FUNCTION state.is_crowded(project text, most integer) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN most > 0 AND most <= (
        SELECT count(*) FROM (
            SELECT FROM state.agent_inbox l
            WHERE l.project_id COLLATE "C" = project AND l.archived_at IS NULL AND l.inbox_id >= ''
              AND l.message_type IN ('turn', 'ui_action') LIMIT most) l) + (
        SELECT count(*) FROM (
            SELECT FROM state.agent_state_head h
            WHERE h.project_id COLLATE "C" = project AND h.agent_id >= ''
              AND h.output_box_id IS NOT NULL AND h.status <> 'dispatched' LIMIT most) h);
END $$;
