-- Whether a card may still be read.
CREATE OR REPLACE FUNCTION state.is_alive(expires_at timestamptz, deleted_at timestamptz) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN deleted_at IS NULL AND coalesce(expires_at > now(), true);
