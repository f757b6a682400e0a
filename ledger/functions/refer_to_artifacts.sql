-- Writes the references of a new card to its files, which it locks, so that none of them is removed before the card is
-- there. A file that is not ready, or of another channel than the card, undoes the transaction: unknown_artifact. What
-- a result or a deliverable names may be a copy, and may have been removed since: then a card of the channel that named
-- it before is enough. The channel is that of the card's turn, else the one that the card says. Only cards with files
-- pay.
CREATE OR REPLACE FUNCTION state.refer_to_artifacts() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
DECLARE
    channel text;
    names text[];
    known text[];
    missing text;
BEGIN
    names := ARRAY(SELECT DISTINCT x #>> '{}' FROM jsonb_array_elements(
        CASE jsonb_typeof(NEW.metadata -> 'artifacts') WHEN 'array' THEN NEW.metadata -> 'artifacts' ELSE '[]' END) x
        ORDER BY 1);
    channel := coalesce(
        (SELECT i.channel_id FROM state.agent_inbox i
         WHERE i.agent_turn_id = NEW.metadata ->> 'agent_turn_id' AND i.project_id = NEW.tenant_id
           AND i.message_type IN ('turn', 'ui_action') LIMIT 1),
        NEW.metadata ->> 'channel_id');
    known := ARRAY(
        SELECT a.artifact_id FROM resource.artifacts a
        WHERE a.project_id = NEW.tenant_id AND a.artifact_id = ANY (names) AND a.status = 'ready'
          AND a.channel_id = channel
        ORDER BY a.artifact_id FOR SHARE);
    IF NEW.metadata ->> 'type' IN ('tool.result', 'task.deliverable') THEN
        known := known || ARRAY(SELECT DISTINCT r.artifact_id FROM state.artifact_refs r
            WHERE r.project_id = NEW.tenant_id AND r.artifact_id = ANY (names) AND r.artifact_id <> ALL (known)
              AND r.channel_id = channel);
    END IF;
    SELECT n INTO missing FROM unnest(names) n WHERE n IS NULL OR n <> ALL (known) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the channel has no file % that is ready', missing
            USING ERRCODE = 'TF001', DETAIL = left(coalesce(missing, ''), 200);
    END IF;
    INSERT INTO state.artifact_refs (project_id, artifact_id, card_id, channel_id)
    SELECT NEW.tenant_id, n, NEW.card_id, channel FROM unnest(names) n;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER cards_refer AFTER INSERT ON public.cards FOR EACH ROW
    WHEN (NEW.metadata ? 'artifacts') EXECUTE FUNCTION state.refer_to_artifacts();
