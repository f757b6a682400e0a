-- Looks once, at the end of a turn, whether anything follows from it, instead of once in each trigger: most ends leave
-- nothing loose. Whoever makes a steer, a question, a node of the tree or a reservation of a turn holds the turn's head
-- or its queued row until it commits, and so does what ends the turn: none can come between this look, which sees the
-- newest, and the triggers that settle.
CREATE OR REPLACE FUNCTION state.find_loose_ends() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    turn text := NEW.agent_turn_id;
BEGIN
    NEW.has_loose_ends := EXISTS (SELECT FROM state.turn_nodes n WHERE n.agent_turn_id = turn)
        OR EXISTS (SELECT FROM state.steers s WHERE s.agent_turn_id = turn AND s.status IN ('waiting', 'taken'))
        OR EXISTS (SELECT FROM state.interrupts q WHERE q.agent_turn_id = turn AND q.status = 'open')
        OR EXISTS (SELECT FROM state.budgets b WHERE b.budget_id = turn)
        OR EXISTS (SELECT FROM state.budget_reservations r WHERE r.agent_turn_id = turn);
    RETURN NEW;
END $$;

-- Triggers of one event run in the order of their names: this one is the first.
CREATE OR REPLACE TRIGGER outcomes_look BEFORE INSERT ON state.turn_outcomes
    FOR EACH ROW EXECUTE FUNCTION state.find_loose_ends();
