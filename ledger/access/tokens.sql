-- Bearer tokens of the gateway (protocol §14.3).

-- name: add_token :one
-- Store a token by the hash of its secret.
INSERT INTO state.gateway_tokens (token_id, project_id, channel_id, role, label, secret_hash,
                                  expires_at, profiles, models)
VALUES (:token_id, :project_id, :channel_id, :role, :label, :secret_hash,
        clock_timestamp() + make_interval(secs => :valid_seconds::float8),
        :profiles::jsonb, :models::jsonb)
RETURNING token_id, project_id, channel_id, role, label, profiles, models, created_at, expires_at, revoked_at;

-- name: find_tokens :many
-- Those of these tokens that are valid now, each with the hash of its secret.
SELECT t.token_id, t.project_id, t.channel_id, t.role, t.label, t.profiles, t.models, t.secret_hash,
       t.created_at, t.expires_at, t.revoked_at
FROM state.gateway_tokens t
WHERE t.token_id = ANY (:token_ids::text[]) AND t.revoked_at IS NULL
  AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp());

-- name: list_tokens :many
-- The tokens of a project, the newest first.
SELECT t.token_id, t.project_id, t.channel_id, t.role, t.label, t.profiles, t.models, t.created_at,
       t.expires_at, t.revoked_at
FROM state.gateway_tokens t WHERE t.project_id COLLATE "C" = :project_id ORDER BY t.created_at DESC, t.token_id;

-- name: list_token_labels :many
-- The labels of a project's newest tokens that have one, each under the name by which the ledger knows who asked.
SELECT 'token.' || t.token_id AS sender, t.label FROM state.gateway_tokens t
WHERE t.project_id COLLATE "C" = :project_id AND t.label <> '' ORDER BY t.created_at DESC LIMIT 1000;

-- name: revoke_token :opt
-- Revoke a token of a project, which pauses its schedules; a second time changes nothing.
WITH paused AS (
    UPDATE resource.schedules s SET paused_at = clock_timestamp(), paused_because = 'owner_revoked',
        revision = s.revision + 1, updated_at = now()
    WHERE s.project_id = :project_id AND s.owner = 'token.' || :token_id::text AND s.paused_at IS NULL
)
UPDATE state.gateway_tokens t SET revoked_at = coalesce(t.revoked_at, clock_timestamp())
WHERE t.token_id = :token_id AND t.project_id = :project_id
RETURNING t.token_id, t.project_id, t.channel_id, t.role, t.label, t.profiles, t.models,
          t.created_at, t.expires_at, t.revoked_at;
