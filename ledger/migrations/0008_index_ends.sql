-- The turns of the last minute, by a key of their own. The summary of page ranges had to be made by autovacuum: until then a
-- look read every page, and pages that were used again blurred it.
DROP INDEX state.outcomes_ended;
CREATE INDEX outcomes_ended ON state.turn_outcomes (ended_at);
