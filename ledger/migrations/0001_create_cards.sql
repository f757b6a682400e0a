-- Cards and boxes (protocol §4): immutable facts and append-only lists of them.

CREATE SCHEMA IF NOT EXISTS resource;

CREATE TABLE public.cards (
    card_id      text PRIMARY KEY,
    tenant_id    text NOT NULL,
    content      jsonb NOT NULL,
    tool_calls   jsonb,
    tool_call_id text,
    ttl_seconds  integer,
    expires_at   timestamptz,
    deleted_at   timestamptz,
    metadata     jsonb NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- made_by lets the guard below see that a box was made by the running transaction.
CREATE TABLE public.boxes (
    box_id     uuid PRIMARY KEY,
    tenant_id  text NOT NULL,
    parent_ids uuid[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    made_by    xid8 NOT NULL DEFAULT pg_current_xact_id()
);

-- No foreign key to boxes: its row lock would rewrite the box at every append. guard_box_cards checks instead.
CREATE TABLE public.box_cards (
    box_id   uuid NOT NULL,
    position bigint NOT NULL CHECK (position > 0),
    card_id  text NOT NULL REFERENCES public.cards (card_id),
    PRIMARY KEY (box_id, position)
);
CREATE INDEX box_cards_card ON public.box_cards (card_id);

CREATE VIEW public.card_boxes AS
SELECT b.box_id, b.tenant_id,
       ARRAY(SELECT c.card_id FROM public.box_cards c WHERE c.box_id = b.box_id ORDER BY c.position) AS card_ids,
       b.parent_ids, b.updated_at
FROM public.boxes b;

-- Invariant 10: an update that changes what a card says fails, an identical one passes; only retention deletes, and
-- says so with SET LOCAL turnstile.retention = 'on'.
CREATE FUNCTION state.guard_cards() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        IF current_setting('turnstile.retention', true) = 'on' THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION 'cards and boxes are immutable: only retention deletes (%)', TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END IF;
    RAISE EXCEPTION 'cards and boxes are immutable (%)', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER cards_immutable BEFORE UPDATE ON public.cards FOR EACH ROW
    WHEN ((OLD.card_id, OLD.tenant_id, OLD.content, OLD.tool_calls, OLD.tool_call_id, OLD.metadata, OLD.created_at)
          IS DISTINCT FROM
          (NEW.card_id, NEW.tenant_id, NEW.content, NEW.tool_calls, NEW.tool_call_id, NEW.metadata, NEW.created_at))
    EXECUTE FUNCTION state.guard_cards();
CREATE TRIGGER cards_kept BEFORE DELETE ON public.cards FOR EACH ROW EXECUTE FUNCTION state.guard_cards();
CREATE TRIGGER boxes_immutable BEFORE UPDATE ON public.boxes FOR EACH ROW
    WHEN ((OLD.box_id, OLD.tenant_id, OLD.parent_ids, OLD.created_at, OLD.made_by)
          IS DISTINCT FROM (NEW.box_id, NEW.tenant_id, NEW.parent_ids, NEW.created_at, NEW.made_by))
    EXECUTE FUNCTION state.guard_cards();
CREATE TRIGGER boxes_kept BEFORE DELETE ON public.boxes FOR EACH ROW EXECUTE FUNCTION state.guard_cards();
CREATE TRIGGER box_cards_immutable BEFORE UPDATE ON public.box_cards FOR EACH ROW
    WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION state.guard_cards();
CREATE TRIGGER box_cards_kept BEFORE DELETE ON public.box_cards FOR EACH ROW EXECUTE FUNCTION state.guard_cards();
CREATE TRIGGER cards_kept_whole BEFORE TRUNCATE ON public.cards EXECUTE FUNCTION state.guard_cards();
CREATE TRIGGER boxes_kept_whole BEFORE TRUNCATE ON public.boxes EXECUTE FUNCTION state.guard_cards();
CREATE TRIGGER box_cards_kept_whole BEFORE TRUNCATE ON public.box_cards EXECUTE FUNCTION state.guard_cards();
