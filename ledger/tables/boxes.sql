-- Boxes (protocol §4): append-only lists of cards. made_by lets guard_box_cards see that the running transaction made a
-- box.
CREATE TABLE public.boxes (
    box_id         uuid PRIMARY KEY,
    tenant_id      text NOT NULL,
    parent_ids     uuid[] NOT NULL DEFAULT '{}',
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    made_by        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    -- A fingerprint of the request that made the box: it tells a repeat from a conflict.
    request_digest text
);
