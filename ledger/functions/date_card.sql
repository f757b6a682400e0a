-- Dates a card: v1r4's reader takes a card's time from its metadata, and the present where it finds none.
CREATE OR REPLACE FUNCTION state.date_card() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.metadata := NEW.metadata || jsonb_build_object('created_at', NEW.created_at);
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER cards_dated BEFORE INSERT ON public.cards FOR EACH ROW
    WHEN (NEW.metadata ->> 'created_at' IS NULL) EXECUTE FUNCTION state.date_card();
