-- What is due, of all agents, for the statements that ask for this index by the words of its predicate, and no others. By the
-- statistics of a ledger with a long past all indexes of live rows are empty, and claims took this one, past every live row.
DROP INDEX state.inbox_due;
CREATE INDEX inbox_due ON state.agent_inbox (next_retry_at) WHERE archived_at IS NULL AND inbox_id >= '';
