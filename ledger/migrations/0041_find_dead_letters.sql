-- Inbox rows that were given up, for people. What the predicate reads is set once, by the update that archives the row.
CREATE INDEX inbox_dead ON state.agent_inbox (project_id COLLATE "C", created_at, inbox_id)
    WHERE last_error IN ('protocol_violation', 'resume_retry_exhausted');
