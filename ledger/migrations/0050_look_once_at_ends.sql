-- What follows from the end of a turn is looked for once, instead of by each of four triggers: most ends leave nothing loose. Whoever makes a
-- steer, a question, a node of the tree, a rollback or a reservation of a turn holds the turn's head or its queued row until it commits,
-- and so does what ends the turn: none can come between this look, which sees the newest, and the triggers that settle.
ALTER TABLE state.turn_outcomes ADD COLUMN has_loose_ends boolean NOT NULL DEFAULT true,
    DROP CONSTRAINT turn_outcomes_status_check,
    ADD CONSTRAINT turn_outcomes_status_check CHECK (status = ANY ('{success,failed,canceled,timeout,partial}'));
COMMENT ON COLUMN state.turn_outcomes.has_loose_ends IS 'whether steers, questions, a tree, a rollback or a budget were settled with the end; before 0050, that was always tried';

CREATE FUNCTION state.find_loose_ends() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    turn text := NEW.agent_turn_id;
BEGIN
    NEW.has_loose_ends := EXISTS (SELECT FROM state.turn_nodes n WHERE n.agent_turn_id = turn)
        OR EXISTS (SELECT FROM state.steers s WHERE s.agent_turn_id = turn AND s.status IN ('waiting', 'taken'))
        OR EXISTS (SELECT FROM state.interrupts q WHERE q.agent_turn_id = turn AND q.status = 'open')
        OR EXISTS (SELECT FROM state.rollbacks r WHERE r.agent_turn_id = turn)
        OR EXISTS (SELECT FROM state.budgets b WHERE b.budget_id = turn)
        OR EXISTS (SELECT FROM state.budget_reservations r WHERE r.agent_turn_id = turn);
    RETURN NEW;
END $$;
-- Triggers of one event run in the order of their names: this one is before outcomes_roll_back.
CREATE TRIGGER outcomes_look BEFORE INSERT ON state.turn_outcomes FOR EACH ROW EXECUTE FUNCTION state.find_loose_ends();

CREATE OR REPLACE TRIGGER outcomes_roll_back BEFORE INSERT ON state.turn_outcomes FOR EACH ROW
    WHEN (NEW.has_loose_ends) EXECUTE FUNCTION state.roll_back();
CREATE OR REPLACE TRIGGER outcomes_settle AFTER INSERT ON state.turn_outcomes FOR EACH ROW
    WHEN (NEW.has_loose_ends) EXECUTE FUNCTION state.settle_end();
CREATE OR REPLACE TRIGGER outcomes_skip_steers AFTER INSERT ON state.turn_outcomes FOR EACH ROW
    WHEN (NEW.has_loose_ends) EXECUTE FUNCTION state.skip_steers();
DROP TRIGGER outcomes_settle_budget ON state.turn_outcomes;
CREATE CONSTRAINT TRIGGER outcomes_settle_budget AFTER INSERT ON state.turn_outcomes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.has_loose_ends) EXECUTE FUNCTION state.settle_budget();
