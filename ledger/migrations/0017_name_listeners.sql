-- Which listeners of the message pump a worker has, and the root tags of the payloads that it knows. Null: none, or a worker of
-- a version that did not say.
ALTER TABLE state.workers ADD COLUMN listeners text[], ADD COLUMN payloads text[];
COMMENT ON COLUMN state.workers.listeners IS 'the listeners that this worker of the target has';
COMMENT ON COLUMN state.workers.payloads IS 'the root tags of the payloads that it knows';
