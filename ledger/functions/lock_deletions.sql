-- Locks the deletions of a project until the transaction ends. Enqueues that a deletion could be about, by their end
-- user or by the turn that they descend from, share the lock; the request of a deletion waits for all of them, notes
-- what they have written, and is seen by those that come after. Taken after the lock of a conversation.
CREATE OR REPLACE FUNCTION state.lock_deletions(project text, is_request boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF is_request THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('turnstile.deletions/' || project, 0));
    ELSE
        PERFORM pg_advisory_xact_lock_shared(hashtextextended('turnstile.deletions/' || project, 0));
    END IF;
END $$;
