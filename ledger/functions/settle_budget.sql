-- The end of a turn, whichever statement it is: what is still reserved for its attempts is settled by what its steps
-- say, or whole; its own grant closes when nothing of it is reserved. A turn that nothing limits costs two looks by
-- key.
CREATE OR REPLACE FUNCTION state.settle_budget() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    entries state.budget_entry[];
BEGIN
    IF EXISTS (SELECT FROM state.budget_reservations r WHERE r.agent_turn_id = NEW.agent_turn_id) THEN
        entries := state.settle_attempts(NEW.agent_turn_id, (
            SELECT coalesce(jsonb_agg(jsonb_build_object('step', r.step, 'attempt', r.attempt, 'tokens', u -> 'tokens',
                'cost', u -> 'cost')), '[]')
            FROM state.budget_reservations r
            LEFT JOIN state.agent_steps s ON s.step_id = r.agent_turn_id || '-s' || r.step
                AND s.project_id = r.project_id
            LEFT JOIN LATERAL jsonb_array_elements(coalesce(s.metadata #> '{budget,uses}', '[]')) u
                ON (u ->> 'attempt')::int = r.attempt
            WHERE r.agent_turn_id = NEW.agent_turn_id AND r.status = 'open'));
    END IF;
    UPDATE state.budgets b SET ended_at = clock_timestamp()
    WHERE b.budget_id = NEW.agent_turn_id AND b.kind = 'turn' AND b.ended_at IS NULL;
    IF FOUND THEN
        entries := entries || (NEW.agent_turn_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)::state.budget_entry;
    END IF;
    IF cardinality(entries) > 0 THEN
        PERFORM state.book_budgets(entries);
    END IF;
    RETURN NULL;
END $$;

-- At the commit, so that budgets are the last rows that a transaction locks.
DROP TRIGGER IF EXISTS outcomes_settle_budget ON state.turn_outcomes;
CREATE CONSTRAINT TRIGGER outcomes_settle_budget AFTER INSERT ON state.turn_outcomes DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW
    WHEN (NEW.has_loose_ends) EXECUTE FUNCTION state.settle_budget();
