-- Paused agents (protocol §6). Apart from 0021: statements lock boxes and heads in either order, and one transaction that wants
-- both whole would meet them in a deadlock.

-- The epoch at which the agent was paused, null while it is not paused. It is on the head because every lease locks the head: a
-- lease that waited for a pause sees it. No lease is taken while it is set, so a busy head's epoch is at most this one.
ALTER TABLE state.agent_state_head ADD COLUMN paused_at_epoch bigint;
