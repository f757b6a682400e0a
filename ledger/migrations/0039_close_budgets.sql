-- Settles and closes what a turn had (0034), at the commit that ends it, whichever statement that is.
CREATE CONSTRAINT TRIGGER outcomes_settle_budget AFTER INSERT ON state.turn_outcomes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION state.settle_budget();
