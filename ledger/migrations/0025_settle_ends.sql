-- What hangs the functions of 0024 on the ends of turns, whichever statement writes the outcome. Apart from 0024, since it waits for the
-- outcomes that are being written. Bridges and workers of the version before end turns of trees as those of this one do.
CREATE TRIGGER outcomes_settle AFTER INSERT ON state.turn_outcomes FOR EACH ROW EXECUTE FUNCTION state.settle_end();
