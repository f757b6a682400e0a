-- The references of a card go with it, and with its content.
CREATE OR REPLACE FUNCTION state.forget_references() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
BEGIN
    DELETE FROM state.artifact_refs r WHERE r.card_id = OLD.card_id;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER cards_forget_references AFTER DELETE ON public.cards FOR EACH ROW
    WHEN (OLD.metadata ? 'artifacts') EXECUTE FUNCTION state.forget_references();
CREATE OR REPLACE TRIGGER emptied_cards_forget_references AFTER UPDATE ON public.cards FOR EACH ROW
    WHEN (OLD.metadata ? 'artifacts' AND NOT NEW.metadata ? 'artifacts') EXECUTE FUNCTION state.forget_references();
