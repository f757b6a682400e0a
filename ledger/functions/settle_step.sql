-- A step says what its attempts used: metadata.budget.uses, an array of {attempt, tokens, cost}.
CREATE OR REPLACE FUNCTION state.settle_step() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM state.book_budgets(state.settle_attempts(NEW.agent_turn_id, coalesce(NEW.metadata #> '{budget,uses}', '[]'),
                                                     state.as_count(substring(NEW.step_id FROM '-s([0-9]+)$'))));
    RETURN NULL;
END $$;

-- At the commit, so that budgets are the last rows that a transaction locks.
DROP TRIGGER IF EXISTS steps_settle_budget ON state.agent_steps;
CREATE CONSTRAINT TRIGGER steps_settle_budget AFTER INSERT ON state.agent_steps DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW
    WHEN (NEW.metadata ? 'budget') EXECUTE FUNCTION state.settle_step();
