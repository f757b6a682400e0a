-- Boxes (protocol §4): append-only lists of cards. made_by lets guard_box_cards see that the running transaction made a
-- box; unused_of is the caller who made it, until a turn or a conversation uses it.
CREATE TABLE public.boxes (
    box_id         uuid PRIMARY KEY,
    tenant_id      text NOT NULL,
    parent_ids     uuid[] NOT NULL DEFAULT '{}',
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    made_by        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    -- A fingerprint of the request that made the box: it distinguishes a repeat from a conflict.
    request_digest text,
    unused_of      text,
    unused_cards   integer
);

-- What a caller has made and nothing uses: see is_full.
CREATE INDEX boxes_unused ON public.boxes (tenant_id COLLATE "C", unused_of) INCLUDE (unused_cards)
    WHERE unused_of IS NOT NULL;

COMMENT ON COLUMN public.boxes.unused_of IS
    'who made it, while no turn and no conversation has used it; null: it is in use, or was made by the kernel';
COMMENT ON COLUMN public.boxes.unused_cards IS 'how many cards such a box was made with';
