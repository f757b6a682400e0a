-- Settles what a step says its attempts used (0034), at the commit.
CREATE CONSTRAINT TRIGGER steps_settle_budget AFTER INSERT ON state.agent_steps DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.metadata ? 'budget') EXECUTE FUNCTION state.settle_step();
