-- Bearer tokens of the gateway (protocol §14.6). A token is shown once; here is a hash of its secret, which is long and
-- random. One that is revoked stays, so that its id still says who did what.
CREATE TABLE state.gateway_tokens (
    token_id    text PRIMARY KEY,
    project_id  text NOT NULL,
    channel_id  text,
    role        text NOT NULL CHECK (role IN ('viewer', 'client', 'approver', 'operator')),
    label       text NOT NULL DEFAULT '',
    secret_hash bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz,
    revoked_at  timestamptz,
    -- What a request may name besides its agent (protocol §6, enqueue).
    profiles    jsonb CHECK (jsonb_typeof(profiles) = 'array'),
    models      jsonb CHECK (jsonb_typeof(models) = 'array')
);

CREATE INDEX gateway_tokens_project ON state.gateway_tokens (project_id COLLATE "C", token_id COLLATE "C");

COMMENT ON TABLE state.gateway_tokens IS 'who may ask the gateway for what: bearer tokens, by a hash of their secret';
COMMENT ON COLUMN state.gateway_tokens.channel_id IS
    'the one channel that it is for; null: every channel of the project';
COMMENT ON COLUMN state.gateway_tokens.label IS 'whose it is, for people';
COMMENT ON COLUMN state.gateway_tokens.profiles IS
    'the profiles that it may name, in lower case, in place of what they say themselves; null: as they say';
COMMENT ON COLUMN state.gateway_tokens.models IS
    'the models that it may name beside the profile''s own, in place of what the profile says; null: as it says';
