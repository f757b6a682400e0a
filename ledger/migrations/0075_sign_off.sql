-- A process that ends as it should says so: what is listed as gone was killed, or lost its servers. Its row stays, since listeners that
-- were served until now still count (protocol §4, §9).
ALTER TABLE state.workers ADD left_at timestamptz;
COMMENT ON COLUMN state.workers.left_at IS 'when it ended as it should; null while it serves, or if it was killed';
