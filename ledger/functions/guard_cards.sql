-- Invariant 10: an update that changes what a card says fails, an identical one passes; only retention deletes, or
-- empties a card that a deletion leaves at its place, and says so with SET LOCAL turnstile.retention = 'on'.
CREATE OR REPLACE FUNCTION state.guard_cards() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        IF current_setting('turnstile.retention', true) = 'on' THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION 'cards and boxes are immutable: only retention deletes (%)', TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_TABLE_NAME = 'cards' AND current_setting('turnstile.retention', true) = 'on' THEN  -- others have no content
        IF NEW.content = '{"__type__": "TextContent", "text": ""}' AND NEW.deleted_at IS NOT NULL THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'cards and boxes are immutable (%)', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

CREATE OR REPLACE TRIGGER cards_immutable BEFORE UPDATE ON public.cards FOR EACH ROW
    WHEN ((OLD.card_id, OLD.tenant_id, OLD.content, OLD.tool_calls, OLD.tool_call_id, OLD.metadata, OLD.created_at)
          IS DISTINCT FROM
          (NEW.card_id, NEW.tenant_id, NEW.content, NEW.tool_calls, NEW.tool_call_id, NEW.metadata, NEW.created_at))
    EXECUTE FUNCTION state.guard_cards();
CREATE OR REPLACE TRIGGER cards_kept BEFORE DELETE ON public.cards FOR EACH ROW EXECUTE FUNCTION state.guard_cards();

CREATE OR REPLACE TRIGGER boxes_immutable BEFORE UPDATE ON public.boxes FOR EACH ROW
    WHEN ((OLD.box_id, OLD.tenant_id, OLD.parent_ids, OLD.created_at, OLD.made_by)
          IS DISTINCT FROM (NEW.box_id, NEW.tenant_id, NEW.parent_ids, NEW.created_at, NEW.made_by))
    EXECUTE FUNCTION state.guard_cards();
CREATE OR REPLACE TRIGGER boxes_kept BEFORE DELETE ON public.boxes FOR EACH ROW EXECUTE FUNCTION state.guard_cards();

CREATE OR REPLACE TRIGGER box_cards_immutable BEFORE UPDATE ON public.box_cards FOR EACH ROW
    WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION state.guard_cards();

CREATE OR REPLACE TRIGGER box_cards_kept BEFORE DELETE ON public.box_cards
    FOR EACH ROW EXECUTE FUNCTION state.guard_cards();
CREATE OR REPLACE TRIGGER cards_kept_whole BEFORE TRUNCATE ON public.cards EXECUTE FUNCTION state.guard_cards();
CREATE OR REPLACE TRIGGER boxes_kept_whole BEFORE TRUNCATE ON public.boxes EXECUTE FUNCTION state.guard_cards();
CREATE OR REPLACE TRIGGER box_cards_kept_whole BEFORE TRUNCATE ON public.box_cards EXECUTE FUNCTION state.guard_cards();
