-- The trace, depth and lineage of a message from outside that joined a thread; null: those of its thread (protocol §9).
ALTER TABLE state.thread_messages ADD COLUMN context_headers jsonb;
