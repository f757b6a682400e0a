-- Cards (protocol §4): immutable facts, each said once.
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

-- What the audit compares with the references of files.
CREATE INDEX cards_artifacts ON public.cards (created_at) WHERE metadata ? 'artifacts';
-- The versions of a profile: each put makes a card. Names are cut, since a v1r4 writer bounds none, and an index holds
-- no long ones.
CREATE INDEX cards_profiles ON public.cards (tenant_id COLLATE "C", (left(lower(content #>> '{data,name}'), 128)),
    created_at)
    WHERE metadata ->> 'type' = 'sys.profile';
